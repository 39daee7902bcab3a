"""Prune: what of a proposed tree is worth a row of the target.

`vet` refuses a tree that a drafter had no right to propose, `prune` cuts what the grammar forbids and what stands behind an
end token. A drawn sibling is never cut alone: to be refused by the target is part of its draw; only what hangs below it goes.
Knows nothing about: models, caches.
"""

from __future__ import annotations

from toolkit.contracts import Matcher
from toolkit.draft.contract import Budget
from toolkit.draft.tree import ROOT, DraftTree
from toolkit.errors import EngineError
from toolkit.sample.accept import checked


def vet(tree: DraftTree, budget: Budget, vocabulary: int) -> DraftTree:
    """The tree as it is. EngineError for tokens outside the vocabulary, more than the budget, a q that nothing was drawn from."""
    strange = next((token for token in tree.tokens if not 0 <= token < vocabulary), None)
    if strange is not None:
        raise EngineError(f"it proposed token {strange}: the vocabulary ends at {vocabulary - 1}")
    most, deepest = budget.most
    if len(tree) > most or tree.depth > deepest:
        raise EngineError(
            f"it proposed {len(tree)} nodes in depth {tree.depth}: asked for were at most {most} in depth {deepest}"
        )
    if tree.q is not None:
        if not tree.q.is_floating_point():
            raise EngineError(f"its q has the dtype {tree.q.dtype}: probabilities are floating-point numbers")
        for nodes in tree.children.values():
            checked(tree.q[list(nodes)], [tree.tokens[node] for node in nodes], vocabulary)
    return tree


def prune(tree: DraftTree, matcher: Matcher | None, ends: frozenset[int]) -> DraftTree:
    """The tree without nodes that can never be taken. The matcher is back where it was afterwards, also after an error."""
    kept: list[int] = []

    def descend(place: int) -> None:
        for node in tree.children.get(place, ()):
            token = tree.tokens[node]
            if token in ends:
                if matcher is None or matcher.is_accepting or tree.q is not None:
                    kept.append(node)
            elif matcher is None:
                kept.append(node)
                descend(node)
            elif matcher.accepts([token]):
                kept.append(node)
                matcher.advance([token])
                try:
                    descend(node)
                finally:  # whoever fails below must not leave the text's own matcher ahead of the text
                    matcher.rollback(1)
            elif tree.q is not None:
                kept.append(node)

    if len(tree):
        descend(ROOT)
    return tree if len(kept) == len(tree) else tree.keep(sorted(kept))
