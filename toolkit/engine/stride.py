"""Stride: how far one request looks ahead.

It drafts the k tokens of the best rate (pace.py). While it has seen little of its drafter's acceptance it hopes for what the engine's other requests
had (_HOPE, while there were few), and at the next position for no less than it has itself at this one: a text that copies is not to
suffer for long from chats before it. It changes its k for a gain of more than MARGIN, or as soon as it has fallen behind plain decoding by
LOSS; where nothing pays it decodes plainly and tries one token again, ever more rarely. Guesses whose chances a drafter knows are no matter of
k: they are taken where they pay one by one (worth.py), and tell nothing of those that k is for.
Knows nothing about: models, trees' contents. What it chooses never changes an output.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.contracts import SamplingParams
from toolkit.draft.contract import NEVER, Budget, Chances
from toolkit.draft.tree import DraftTree
from toolkit.engine.acceptance import Acceptance
from toolkit.engine.asks import OwnAsks
from toolkit.engine.draft_costs import FEW
from toolkit.engine.pace import LONGEST, TRIAL, Pace
from toolkit.engine.worth import REACH, Trust, worthwhile

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
_FREE = 4  # lines to which that applies; of more, whose looks take more of a pass, each looks as much more rarely
_GOES_ON = 0.6  # of the tokens behind a right guess that are right as well; the package's MTP head: .46 to .57 in chats, .63 to .66 on held-out replies (its card)


class Stride:
    """One a sample: its acceptance, and the k it goes with. It counts among the lines of `pace` until it is closed."""

    def __init__(self, pace: Pace, sampling: SamplingParams, chances: Chances = "none") -> None:
        pace.lines += 1
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
        self._own = OwnAsks(pace.passes, pace.passes.pays)  # of passes of a draft model
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
        may_pass = self._may_pass(room)
        if k == 0 and not pace.may_ask() and not (may_pass and pace.passes.count):
            # all lines look again in the same pass: what runs for one is in the processor's caches for the next
            rest = _REST * max(1, pace.lines // _FREE)
            self._rest = rest - pace.costs.clock % rest
            return Budget(0, 0, self._sampling)
        return Budget(k, k, self._sampling, min(room, REACH), self._worth, self._least() if may_pass else NEVER)

    def _may_pass(self, room: int) -> bool:
        """Whether this line's drafter may make passes of a draft model for guesses of known chances."""
        if self._trial_left:
            self._trial_left -= 1
            return True
        pace = self._pace
        if self._own.every is not pace.passes:
            self._own = OwnAsks(pace.passes, pace.passes.pays)
        if self._own.pay(pace.costs.clock) and pace.may_read(self._unread, room):
            return True
        if pace.may_try(self._unread):
            self._trial_left = TRIAL - 1
            pace.passes.rested = 0  # one line at a time, whatever comes of it
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
            known = min(asks.seconds, left) if asks.seconds > 0.0 else left
            asks.learn(known if asks.count else None, self._saves)
        else:
            asks.learn(seconds, self._saves)
        self._since = 0
        if passes:
            if self._own.every is asks:
                self._own.learn(self._saves, pace.costs.clock)
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
