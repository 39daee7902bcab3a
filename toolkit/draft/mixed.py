"""FirstOf: several drafters in one, the first that has a guess proposes; "ngram+mtp" is the one in the table.

In: what its parts take.   Out: the tree of the first part that has one; with `fill` the next part's guesses in the room that is left.
Knows nothing about: how its parts guess.
Invariants: every part sees every commit, so each could propose at any time; closing closes all, also where one fails.
Source: own; copying is the n-gram part's, what is new the other's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from toolkit.draft.contract import DRAFTERS, Budget, Chances, Commit, Cost, Drafter, Source, Target
from toolkit.draft.options import Options
from toolkit.draft.tree import EMPTY, ROOT, DraftTree
from toolkit.errors import UsageError


class FirstOf:
    """Drafters of one sequence, asked in order. fill: on and on, until the budget is used up."""

    def __init__(self, parts: Sequence[Drafter], *, fill: bool = False) -> None:
        self.parts = tuple(parts)
        self._fill = fill

    def observe(self, commit: Commit) -> None:
        """Every part takes it in."""
        for part in self.parts:
            part.observe(commit)

    def propose(self, budget: Budget) -> DraftTree:
        """The first tree that is not empty; with `fill` joined with those of the parts behind it."""
        if not self._fill:
            return next((tree for part in self.parts if len(tree := part.propose(budget))), EMPTY)
        whole = EMPTY
        for part in self.parts:
            if len(whole) < budget.nodes:
                whole = joined(whole, part.propose(replace(budget, nodes=budget.nodes - len(whole))))
        return whole

    def close(self) -> None:
        """Close every part; the first error is raised after the last was closed."""
        with ExitStack() as stack:
            for part in self.parts:
                stack.callback(part.close)


def joined(first: DraftTree, second: DraftTree) -> DraftTree:
    """Both trees in one: the nodes of the first, then what the second has beside them. Nothing in them was drawn."""
    tokens, parents = list(first.tokens), list(first.parent)
    known = {(parent, token): node for node, (parent, token) in enumerate(zip(parents, tokens, strict=True))}
    place = {ROOT: ROOT}
    for node, (parent, token) in enumerate(zip(second.parent, second.tokens, strict=True)):
        where = (place[parent], token)
        if where not in known:
            known[where] = len(tokens)
            tokens.append(token)
            parents.append(where[0])
        place[node] = known[where]
    return DraftTree(tuple(tokens), tuple(parents))


class FirstOfSource:
    """Sources of the table, in order. Options: one mapping a part, under its name: {"ngram": {"min_match": 3}}; fill (use up the
    nodes of a budget that the first part with a guess leaves over with the next part's, False: worth it where tokens a pass count and rows do not).
    """

    name: str
    parts: tuple[str, ...]
    defaults: Mapping[str, Mapping[str, Any]]  # options that a part has here where it is not told otherwise

    def __init__(self, target: Target, options: Mapping[str, Any]) -> None:
        given = Options(self.name, options)
        own = {part: {**self.defaults.get(part, {}), **given.group(part)} for part in self.parts}
        self.fill = given.flag("fill", False)
        given.end()
        self.sources: list[Source] = [DRAFTERS.load(part)(target, own[part]) for part in self.parts]
        self.needs_hidden = any(source.needs_hidden for source in self.sources)
        self.lossy = any(source.lossy for source in self.sources)
        self.chances: Chances = _chances([source.chances for source in self.sources], fill=self.fill)
        self.draw = any(source.draw for source in self.sources)
        if self.draw and self.fill:
            raise UsageError(f"drafter {self.name!r} cannot fill a tree with draws", hint="leave out fill or draw")
        # The dearest part's: which part a token comes from is not known before.
        self.cost = Cost(
            max(source.cost.flops for source in self.sources), max(source.cost.weight_bytes for source in self.sources)
        )

    def open(self, seed: int) -> FirstOf:
        """A drafter for one sequence; every part gets the same seed."""
        with ExitStack() as stack:
            parts: list[Drafter] = []
            for source in self.sources:
                parts.append(source.open(seed))
                stack.callback(parts[-1].close)
            stack.pop_all()
        return FirstOf(parts, fill=self.fill)


def _chances(parts: Sequence[Chances], *, fill: bool) -> Chances:
    """A tree that is filled up is one draft of all parts, judged as a whole."""
    if fill or all(each == "none" for each in parts):
        return "none"
    return "all" if all(each == "all" for each in parts) else "some"


class NgramMtpSource(FirstOfSource):
    """Copies where the text repeats itself, the MTP head elsewhere. The n-gram part speaks only where it is rather sure."""

    name = "ngram+mtp"
    parts = ("ngram", "mtp")
    defaults = {"ngram": {"min_match": 3, "sure": 0.4, "floor": 0.1}}  # noqa: RUF012 - a constant
