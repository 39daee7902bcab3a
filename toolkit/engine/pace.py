"""Pace: what drafts are worth on this engine, from measured acceptance and the measured cost of a pass with M rows.

    tokens per second at k drafted tokens, L lines running, R rows of others in the same passes (beams, plain requests)
        rate(k) = (R + L * E(k)) / (cost(R + L * (1 + k)) + L * (k * d + h))        E(k) = 1 + a1 + a1 a2 + ... + a1 ... ak

a_i is the share of drafts that were accepted at position i given that all before it were. cost is measured on this machine
(pass_costs.py), with what the loop spends on L lines between two passes; d is the drafter's time for a guessed token, h the loop's for a pass
with a draft beyond that (draft_costs.py). Whether to ask for guesses of known chances at all is told by what such asks took and brought (asks.py).
Knows nothing about: models, trees' contents, what one request chooses (stride.py).
Source: expected tokens 2211.17192 section 3.1, with an acceptance for each position in place of one for all.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.draft.contract import Chances
from toolkit.engine.acceptance import Acceptance
from toolkit.engine.asks import Asks
from toolkit.engine.draft_costs import FEW, DraftCosts
from toolkit.engine.pass_costs import PassCosts
from toolkit.engine.worth import REACH, Trust

LONGEST = 8  # tokens that are looked ahead at most where the request leaves it open
_IDLE = 0.004  # of the time since they were last asked: what it may take to ask all lines' drafters, whatever it brings
_NEWEST = 0.1  # weight of the newest such time
_NEWEST_PASSES = 0.04  # and where it decides about passes of a draft model: most of those bring nothing, a few much
_EXPLORE_PASSES = 0.01  # of the time since the last trial of such passes on any line: what one may take where one line runs
_EXPLORERS = 4  # and where so many run or more, as much less: the more lines, the less likely such passes pay, the longer all wait for them
TRIAL = 8  # such passes of a line, one a pass of the target, that tell whether they would pay
_PER_PASS = 2.0  # tokens of a pass that is drafted for, about


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

    def may_read(self, unread: int, room: int) -> bool:
        """Whether what passes of a draft model bring over the `room` tokens that a text has left pays for reading `unread` ones first.

        While too little is known to say so, whether the text has room for some passes.
        """
        asks = self.passes
        if unread <= FEW or (asks.is_new and room >= TRIAL):
            return True
        return (asks.saved - asks.seconds) * room / _PER_PASS >= self.drafts.read_s * unread

    def may_try(self, unread: int) -> bool:
        """Whether some passes of a draft model may be made where they do not pay, what was read meanwhile in the price.

        A trial takes at most a share of the time since the last pass of a draft model on any line. It is several passes on one line: the first
        reads, and finds nothing of what it needs in the processor's caches; what the next ones take is what they would always take.
        """
        asks = self.passes
        asks.rested += 1
        now = self.cost(self.others + self.lines)
        return (
            TRIAL * asks.seconds + self.drafts.read_s * unread
            <= _EXPLORE_PASSES / min(self.lines, _EXPLORERS) * asks.rested / self.lines * now
        )

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
