"""NgramDrafter: what followed the last tokens when they stood in this text before, in the prompt or in the output.

In: the text, token by token.   Out: a tree of continuations, deterministic.
The longest suffix that occurred before comes first; what followed it gets probability count / (total + escape), the escape
goes to the next shorter suffix, and so on down to `min_match` tokens. The tree holds the likeliest paths under the budget.
Knows nothing about: models, grammars, what is copied and why.
Invariants: memory is linear in the text and bounded (WINDOW); a proposal costs the same however long the text is.
Source: prompt lookup (2304.04487; Saxena 2023) over a suffix automaton (SAM decoding, 2411.10666); the blend of lengths is
PPM's escape (Cleary and Witten 1984); departures: the escape falls with the length of the match, see ESCAPE.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from toolkit.draft.contract import Budget, Chances, Commit, Cost, Target
from toolkit.draft.options import Options
from toolkit.draft.suffix import SuffixAutomaton
from toolkit.draft.tree import EMPTY, MOST_NODES, ROOT, DraftTree

WINDOW = 1 << 14  # tokens that are looked at, at least; at twice as many the older half is forgotten
ESCAPE = 2.0  # over the matched length: a match of 2 tokens is believed once in two, of 8 four times in five
SHORTER = 3  # suffixes that are asked at a node, the longest first
EDGES = 256  # continuations of one suffix that are looked at, the newest


class _Guess(NamedTuple):
    """A possible node, in a heap: likelier first, then more recent, then older in the tree."""

    minus_p: float
    minus_last: int
    parent: int
    token: int
    state: int
    matched: int
    depth: int


class NgramSource:
    """Options: min_match (tokens that must match, 2), width (most continuations of a node, 3), floor (joint probability, .2), sure (probability
    of the likeliest next token, below which it has no guess, 0).
    """

    name = "ngram"
    needs_hidden = False
    lossy = False
    chances: Chances = "all"
    draw = False
    cost = Cost()

    def __init__(self, target: Target, options: Mapping[str, Any]) -> None:
        given = Options(self.name, options)
        self.min_match = given.count("min_match", 2, 1, 64)
        self.width = given.count("width", 3, 1, MOST_NODES)
        self.floor = given.share("floor", 0.2)
        self.sure = given.share("sure", 0.0)
        given.end()

    def open(self, seed: int) -> NgramDrafter:
        """A drafter for one sequence; nothing is drawn, so the seed changes nothing."""
        return NgramDrafter(self.min_match, self.width, self.floor, self.sure)


class NgramDrafter:
    """State of one sequence: the automaton of its text."""

    def __init__(self, min_match: int = 2, width: int = 3, floor: float = 0.2, sure: float = 0.0) -> None:
        self.min_match = min_match
        self.width = width
        self.floor = floor
        self.sure = sure
        self._text: list[int] = []
        self._known = SuffixAutomaton()
        self._unread: list[int] = []

    def observe(self, commit: Commit) -> None:
        """Tokens are read when it is asked: one that is never asked costs next to nothing."""
        self._unread += commit.tokens
        if len(self._unread) >= WINDOW:
            self._read()

    def _read(self) -> None:
        """Take in tokens; what lies 2 x WINDOW back is forgotten for certain."""
        for token in self._unread:
            self._text.append(token)
            self._known.add(token)
            if len(self._text) == 2 * WINDOW:
                self._text = self._text[WINDOW:]
                self._known = SuffixAutomaton(self._text)
        self._unread = []

    def propose(self, budget: Budget) -> DraftTree:
        """The likeliest continuations whose joint probability is at least the floor; where the budget says what is worth a row, as many as are."""
        self._read()
        known = self._known
        state = known.link[known.whole]
        if state <= 0 or known.length[state] < self.min_match:
            return EMPTY
        heap = list(self._after(ROOT, state, known.length[state], 1.0, 1))
        heapq.heapify(heap)
        if not heap or -heap[0].minus_p < self.sure:
            return EMPTY
        nodes, depth = (budget.nodes, budget.depth) if budget.worth is None else (budget.reach, budget.reach)
        taken: list[_Guess] = []
        while heap and len(taken) < nodes:
            guess = heapq.heappop(heap)
            taken.append(guess)
            if guess.depth < depth:
                for each in self._after(len(taken) - 1, guess.state, guess.matched, -guess.minus_p, guess.depth + 1):
                    heapq.heappush(heap, each)
        chances = None
        if budget.worth is not None:
            taken = taken[: budget.worth([-guess.minus_p for guess in taken])]
            chances = tuple(-guess.minus_p for guess in taken)
        return DraftTree(tuple(guess.token for guess in taken), tuple(guess.parent for guess in taken), None, chances)

    def close(self) -> None:
        """Forget the text."""
        self._text, self._unread = [], []
        self._known = SuffixAutomaton()

    def _after(self, parent: int, state: int, matched: int, mass: float, depth: int) -> Iterator[_Guess]:
        """Continuations of a node whose last `matched` tokens are at `state`, at most `width`, those below the floor left out."""
        known = self._known
        seen: set[int] = set()
        for _ in range(SHORTER):
            if matched < self.min_match or mass < self.floor:
                return
            edges = known.edges[state]
            if edges:
                escape = ESCAPE / matched
                ways = self._ways(edges)
                total = sum(count for count, *_ in ways) + escape
                for count, last, token, target in ways:
                    p = mass * count / total
                    if p < self.floor or len(seen) == self.width:
                        break
                    if token not in seen:
                        seen.add(token)
                        yield _Guess(-p, -last, parent, token, target, matched + 1, depth)
                mass *= escape / total
            state = known.link[state]
            matched = known.length[state]

    def _ways(self, edges: Mapping[int, int]) -> list[tuple[int, int, int, int]]:
        """(count, last place, token, state) of the EDGES newest edges, most frequent first, then most recent."""
        count, last = self._known.count, self._known.last
        if len(edges) == 1:
            ((token, target),) = edges.items()
            return [(count[target], last[target], token, target)]
        some = [(count[target], last[target], token, target) for token, target in list(edges.items())[-EDGES:]]
        return sorted(some, reverse=True)
