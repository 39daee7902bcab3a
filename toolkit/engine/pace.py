"""Pace: how far to look ahead, from measured acceptance and the measured cost of a pass with M rows.

    tokens per second at k drafted tokens, L lines running, R rows of others in the same passes (beams, plain requests)
        rate(k) = (R + L * E(k)) / (cost(R + L * (1 + k)) + L * (k * d + h))        E(k) = 1 + a1 + a1 a2 + ... + a1 ... ak

a_i is the share of drafts that were accepted at position i given that all before it were, over this request. While it has seen
little, it hopes for what the engine's other requests had (_HOPE, while there were few), and at the next position for no less than
it has itself at this one: a text that copies is not to suffer for long from chats before it. cost is measured on this
machine (pass_costs.py), with what the loop spends on L lines between two passes; d is the drafter's time for a guessed token, h the loop's for a pass
with a draft beyond that (draft_costs.py). A request changes its k for a gain of more than
MARGIN, or as soon as it has fallen behind plain decoding by LOSS; where nothing pays it decodes plainly and tries one token again,
ever more rarely. Guesses whose chances a drafter knows are no matter of k: they are taken where they pay one by one (worth.py), and tell
nothing of those that k is for.
Knows nothing about: models, trees' contents. What it chooses never changes an output.
Source: expected tokens 2211.17192 section 3.1, with an acceptance for each position in place of one for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from toolkit.contracts import SamplingParams
from toolkit.draft.contract import NEVER, Budget, Chances
from toolkit.draft.tree import DraftTree
from toolkit.engine.draft_costs import FEW, DraftCosts
from toolkit.engine.pass_costs import PassCosts
from toolkit.engine.worth import REACH, Trust, worthwhile

LONGEST = 8  # tokens that are looked ahead at most where the request leaves it open
MARGIN = 1.05
LOSS = 1.02
_MEMORY = 0.97  # what a request's counts keep from pass to pass
_HOPE = 0.6
_PRIOR = 3.0  # passes that hope counts for
_SOONEST, _LATEST = 16, 256  # plain passes between two trials of a drafter that did not pay
EXPLORE = 0.015  # of the time since the last trial: what a trial may take
PATIENCE = 1.0  # seconds that a drafter may cost a request beyond what its guesses could save
_WIDE = 64  # rows of a pass in which reading a token is cheap
_REST = 8  # passes for which it is not looked again whether to ask, at most
_IDLE = 0.01  # of the time since they were last asked: what it may take to ask all lines' drafters, whatever it brings
_NEWEST = 0.1  # weight of the newest such time
_NEWEST_PASSES = 0.04  # and where it decides about passes of a draft model: most of those bring nothing, a few much
_EXPLORE_PASSES = 0.01  # as EXPLORE, of passes of a draft model whose guesses' chances are known
_TRIAL = 8  # such passes of a line, one a pass of the target, that tell whether they would pay
_IN_DOUBT = 1.25  # times what they bring that passes may take until they are given up: what one brings is nothing or much
_FIRST = 8  # such passes of an engine that are made whatever they bring
_GOES_ON = 0.6  # of the tokens behind a right guess that are right as well; heads trained here: .56 to .60 (their cards)


@dataclass(slots=True)
class Acceptance:
    """Conditional acceptance by position, counts fading with `memory`."""

    memory: float
    tried: list[float] = field(default_factory=list)
    taken: list[float] = field(default_factory=list)

    def learn(self, depth: int, accepted: int) -> None:
        """A draft of `depth` tokens of which the first `accepted` were right: position accepted + 1 was wrong, if there was one."""
        for counts in (self.tried, self.taken):
            counts += [0.0] * (depth - len(counts))
            counts[:] = [count * self.memory for count in counts]
        for position in range(min(depth, accepted + 1)):
            self.tried[position] += 1
            self.taken[position] += position < accepted

    def rate(self, position: int, prior: float, weight: float) -> float:
        """Estimate at a position (0 = first), leaning on `prior` as on `weight` observations."""
        if position >= len(self.tried):
            return prior
        return (self.taken[position] + weight * prior) / (self.tried[position] + weight)


@dataclass(slots=True)
class Asks:
    """What it takes to ask a drafter for guesses of known chances, and what that brings, the newest counting most."""

    weight: float  # of the newest
    before: int  # asks that it begins with, which took and brought nothing
    seconds: float = 0.0  # an ask, to read what the drafter was told during a rest not counted
    saved: float = 0.0  # of a line's time, those in vain counted, as far as the chances are true
    count: int = 0
    rested: int = 0  # passes of any line without one, since the last
    pays: bool = True  # as far as one could say

    def learn(self, seconds: float | None, saved: float) -> None:
        """One more; seconds: None = they say nothing."""
        self.count += 1
        weight = max(self.weight, 1 / (self.before + self.count))
        if seconds is not None:
            self.seconds += weight * (seconds - self.seconds)
        self.saved += weight * (saved - self.saved)
        self.rested = 0


class Pace:
    """One an engine. `tokens` and `nodes` fix the draft (a chain of `tokens`, a tree of `nodes`); None leaves it to measurement."""

    def __init__(self, costs: PassCosts, *, tokens: int | None = None, nodes: int | None = None) -> None:
        self.costs = costs
        self.lines = 0  # running now
        self.acceptance = Acceptance(memory=0.999)
        self.drafts = DraftCosts()
        self.rested = 0  # passes without a draft, of all lines, since the last trial of any
        self._asked: dict[tuple[bool, int], Asks] = {}
        self.trusts = {False: Trust(), True: Trust()}  # True: guesses that took passes of a draft model
        self._tokens, self._nodes = tokens, nodes
        self._asking = -1  # at which pass lines were last allowed to ask

    def widest(self, chances: Chances) -> int:
        """Nodes of the largest tree that it asks for, of a source with such chances."""
        return max(self._tokens or 0, self._nodes or 0) or (LONGEST if chances == "none" else max(LONGEST, REACH))

    @property
    def others(self) -> int:
        """Rows of the last pass that belong to no line with a drafter."""
        return max(0, self.costs.undrafted - self.lines)

    def stride(self, sampling: SamplingParams, chances: Chances = "none") -> Stride:
        self.lines += 1
        return Stride(self, sampling, chances)

    @property
    def asks(self) -> Asks:
        """Of drafters of known chances that guess at next to no cost, with about as many lines as run now."""
        key = False, self.lines.bit_length()
        return self._asked.get(key) or self._asked.setdefault(key, Asks(_NEWEST, 9))

    @property
    def passes(self) -> Asks:
        """Of those whose guesses take passes of a draft model, likewise: what is right for one line says nothing of eight."""
        key = True, self.lines.bit_length()
        return self._asked.get(key) or self._asked.setdefault(key, Asks(_NEWEST_PASSES, 0))

    def cost(self, rows: int) -> float:
        """Seconds (or whatever unit costs have) from one pass of so many rows to the next, drafts aside."""
        return self.costs(rows) + self.lines * self.drafts.plain_s

    def fixed(self, room: int) -> tuple[int, int] | None:
        """(nodes, depth) where the draft is not left to measurement."""
        if self._tokens is None and self._nodes is None:
            return None
        depth = min(room, self._tokens or LONGEST)
        return (self._nodes or depth), depth

    def prices(self, count: int) -> list[float]:
        """Seconds (likewise) that 1, 2, ... rows more on every line cost all together."""
        rows, lines = self.others + self.lines, self.lines
        beside = lines * self.drafts.handle_s - self.costs(rows)
        return [self.costs(rows + lines * n) + beside for n in range(1, count + 1)]

    def may_ask(self) -> bool:
        """Whether to ask for guesses at next to no cost: where that brings more than it takes, or has not been done for long enough.

        All lines that look in the same pass hear the same: what runs for the first of them is in the processor's caches for the next.
        """
        asks, now = self.asks, self.costs.clock
        if now == self._asking:
            return True
        rested = max(1, now - self._asking)
        if asks.seconds <= asks.saved or self.lines * asks.seconds <= _IDLE * rested * self.cost(self.others + self.lines):
            self._asking = now
            return True
        return False

    @property
    def passes_pay(self) -> bool:
        """Whether passes of a draft model bring more than they take."""
        asks = self.passes
        asks.pays = asks.count < _FIRST or asks.seconds <= asks.saved * (_IN_DOUBT if asks.pays else 1.0)
        return asks.pays

    def may_try(self, unread: int) -> bool:
        """Whether some passes of a draft model may be made where they do not pay, what was read meanwhile in the price.

        A trial takes at most a share of the time since the last pass of a draft model on any line. It is several passes on one line: the first
        reads, and finds nothing of what it needs in the processor's caches; what the next ones take is what they would always take.
        """
        asks = self.passes
        asks.rested += 1
        now = self.cost(self.others + self.lines)
        return _TRIAL * asks.seconds + self.drafts.read_s * unread <= _EXPLORE_PASSES * asks.rested / self.lines * now

    def rates(self, accepted: Sequence[float]) -> list[float]:
        """Tokens per second (of whatever unit costs have) of all that runs, for k = 0, 1, ... drafted tokens on each line."""
        others, lines, drafts, handle_s = self.others, self.lines, self.drafts, self.drafts.handle_s
        expected = through = 1.0
        found = [(others + lines) / self.cost(others + lines)]
        for k, each in enumerate(accepted, 1):
            through *= each
            expected += through
            seconds = self.cost(others + lines * (1 + k)) + lines * (k * drafts.guess_s + handle_s)
            found.append((others + lines * expected) / seconds)
        return found


class Stride:
    """One a sample: its acceptance, and the k it goes with."""

    def __init__(self, pace: Pace, sampling: SamplingParams, chances: Chances) -> None:
        self._pace = pace
        self._chances = chances
        self._sampling = sampling
        self._acceptance = Acceptance(memory=_MEMORY)
        self._k = 0 if chances == "all" else 1
        self._asked = 1  # tokens on a path, of the last budget
        self._plain = 0  # passes without a draft since the last one
        self._wait = 0
        self._trying = False
        self._beside: tuple[int, int] | None = None  # what ran when it last chose
        self._news = True  # a draft was judged since
        self._spent = 0.0  # since a draft was last judged
        self._busy = 0.0  # in all
        self._before = pace.costs.so_far
        self._heard = self._guessed = 0  # tokens in all
        self._unread = 0  # tokens heard since the drafter's last guess that took a pass or was judged
        self._since = 0  # and since it was last asked for guesses of known chances
        self._open = True
        self._trusts = {kind: Trust(of_all) for kind, of_all in pace.trusts.items()}
        self._weighed = False  # which of them the last guesses were weighed with
        self._rest = 0  # passes until it looks again whether to ask
        self._asked_for_worth = False  # the time that it took is told next
        self._passes = 0  # of a draft model, one after the other, for that answer
        self._saves = 0.0  # what it brings
        self._told_s = 0.0  # what the drafter took to be told of what became text, since it was last asked
        self._trial_left = 0  # passes for which it makes passes of a draft model although they do not pay

    @property
    def rests(self) -> bool:
        """Whether the next pass goes without a drafter, so that nothing need be weighed; to be asked once a pass."""
        if not self._rest:
            return False
        self._rest -= 1
        self._pace.passes.rested += 1
        return True

    def budget(self, room: int) -> Budget:
        """What to propose in the next pass, `room` tokens at most on a path; 0 nodes = nothing."""
        fixed = self._pace.fixed(room)
        if fixed is not None:
            self._asked = max(1, fixed[1])
            return Budget(*fixed, self._sampling)
        k = 0 if self._chances == "all" else min(room, self._choose())
        if k == 0:
            self._spent = 0.0  # to take note of plain passes is no part of what a draft costs
        else:
            self._asked = k  # a tree that is less deep was looked for as far
        for each in self._trusts.values():
            each.fade()
        self._passes, self._saves = 0, 0.0
        if self._chances == "none":
            return Budget(k, k, self._sampling)
        pace = self._pace
        may_pass = self._may_pass()
        if k == 0 and not pace.may_ask() and not (may_pass and pace.passes.count):
            # all lines look again in the same pass: what runs for one is in the processor's caches for the next
            self._rest = _REST - pace.costs.clock % _REST
            return Budget(0, 0, self._sampling)
        return Budget(k, k, self._sampling, min(room, REACH), self._worth, self._least() if may_pass else NEVER)

    def _may_pass(self) -> bool:
        """Whether this line's drafter may make passes of a draft model for guesses of known chances."""
        if self._trial_left:
            self._trial_left -= 1
            return True
        if self._pace.passes_pay:
            return True
        if self._pace.may_try(self._unread):
            self._trial_left = _TRIAL - 1
            self._pace.passes.rested = 0  # one line at a time, whatever comes of it
            return True
        return False

    def _least(self) -> float:
        """The joint probability behind which one more guess is worth a pass of the draft model and a row, at the rate of plain decoding."""
        pace = self._pace
        first, second = pace.prices(2)
        seconds = second - first + pace.lines * pace.drafts.guess_s
        return min(1.0, pace.rates(())[0] * seconds / (pace.lines * self._trusts[True].share * _GOES_ON))

    def _worth(self, chances: Sequence[float], passes: int = 0) -> int:
        """How many of the guesses, of falling chances, to take: none where what would be drafted in their place, k tokens, is worth more."""
        pace = self._pace
        self._passes += passes
        self._weighed = passes > 0
        rate = pace.rates(self._rates()[: self._k])[-1]
        rows = pace.others + pace.lines
        gains = [pace.lines * self._trusts[self._weighed].share * each for each in chances]
        # what k tokens are worth at the rate that they make: nothing more than an empty pass where k = 0
        instead = rate * pace.cost(rows) - rows
        count, left = worthwhile(gains, [rate * each for each in pace.prices(len(chances))], least=instead)
        if count:
            self._saves = left / rate / pace.lines
        return count

    def asked(self, share: float) -> None:
        """The drafter was asked for guesses of known chances, of which a share was left by the grammar; what that took is told next."""
        self._asked_for_worth = True
        self._saves *= share

    def learn(self, tree: DraftTree, accepted: int) -> None:
        """A pass verified a tree and took `accepted` of its tokens."""
        self._guessed += tree.depth
        if tree.chances is not None:
            self._trusts[self._weighed].learn(sum(tree.chances), accepted)
            return
        self._news = True
        for each in (self._acceptance, self._pace.acceptance):
            each.learn(tree.depth, accepted)
        self._trying = False
        if self._k == 0:  # a trial; one in which the drafter had no guess was none
            self._plain, self._wait = 0, min(max(2 * self._wait, _SOONEST), _LATEST)
        self._pace.drafts.learn(self._spent, self._asked, self._unread)
        self._spent, self._unread = 0.0, 0

    def handle(self, seconds: float, *, drafted: bool) -> None:
        """The loop was busy for so long with a pass, the drafter's own time not counted."""
        self._pace.drafts.handle(seconds, drafted=drafted)

    def spend(self, seconds: float) -> None:
        """The drafter was busy for so long."""
        if self._asked_for_worth:
            self._account(seconds + self._told_s)
            self._told_s = 0.0
        elif self._guessed:
            self._told_s += seconds
        self._spent += seconds
        self._busy += seconds

    def _account(self, seconds: float) -> None:
        pace, passes = self._pace, self._passes
        asks = pace.passes if passes else pace.asks
        unread = self._unread if passes else self._since
        if unread > FEW:  # it read first: an ask is no dearer for that, but may have become cheaper
            left = max(0.0, seconds - (pace.drafts.read_s * unread if passes else 0.0))
            asks.learn(min(asks.seconds, left) if asks.count else None, self._saves)
        else:
            asks.learn(seconds, self._saves)
        self._since = 0
        if passes:
            pace.costs.disturb()
            pace.drafts.learn(seconds, passes, self._unread)
            self._unread = 0
        self._asked_for_worth, self._passes, self._saves = False, 0, 0.0

    def hear(self, tokens: int) -> None:
        """The drafter was told of so many tokens."""
        self._heard += tokens
        self._unread += tokens
        self._since += tokens

    @property
    def is_too_slow(self) -> str:
        """Why the drafter is to be switched off, "" = it is not.

        A token that it guessed can save a pass at most, and reading one may cost it what it costs the target. Where the
        target's passes were held up meanwhile, by others that want this machine, the drafter may have been, too.
        """
        if self._busy <= PATIENCE:
            return ""
        costs = self._pace.costs
        could_save = costs.held_up(self._before) * (self._guessed * costs(1) + self._heard * costs(_WIDE) / _WIDE)
        if self._busy <= could_save + PATIENCE:
            return ""
        return f"it took {self._busy:.1f} s, its {self._guessed} guesses could save {could_save:.1f} s at most"

    def close(self) -> None:
        """The sample has ended; harmless when said twice."""
        self._pace.lines -= self._open
        self._open = False

    def _choose(self) -> int:
        beside = self._pace.lines, self._pace.others.bit_length()
        if not self._news and self._beside == beside:  # passes are to cost what they cost without a drafter
            return self._k or self._trial()
        self._news, self._beside = False, beside
        rates = self._pace.rates(self._rates())
        best = max(range(LONGEST + 1), key=rates.__getitem__)
        now = rates[self._k]
        if rates[best] > MARGIN * now or rates[0] > LOSS * now:
            self._k = best
        if self._k == 0:
            return self._trial()
        self._plain, self._wait = 0, _SOONEST
        return self._k

    def _trial(self) -> int:
        """Now and then one token, where one that is always right would pay: texts change, what was refused so far says little.

        A request that begins where others were refused begins with one. What it takes, to read what came meanwhile included, is at
        most a share of the time since the last one of any request, however slow the drafter seems: so a drafter that was held up
        once comes back, and one that is slow costs little.
        """
        if self._trying:
            return 1
        pace = self._pace
        self._plain += 1
        pace.rested += 1
        if self._plain < self._wait:
            return 0
        lines, rows, drafts = pace.lines, pace.lines + pace.others, pace.drafts
        price = drafts.guess_s + drafts.read_s * self._unread
        now = pace.cost(rows)
        if price <= EXPLORE * pace.rested / lines * now and (rows + lines) * now > MARGIN * rows * pace.cost(rows + lines):
            self._trying, pace.rested = True, 0
            return 1
        self._wait = self._plain + _SOONEST  # to look again in every pass would itself cost
        return 0

    def _rates(self) -> list[float]:
        found: list[float] = []
        hope = _HOPE
        for position in range(LONGEST):
            hope = self._pace.acceptance.rate(position, hope, 2.0)
            found.append(self._acceptance.rate(position, max(hope, *found[-1:], 0.0), _PRIOR))
        return found
