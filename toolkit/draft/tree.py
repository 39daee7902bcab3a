"""DraftTree: guesses at the next tokens of one sequence, as a tree that one pass of the target verifies. A chain has width 1.

    root (the last committed token)
     +- 0 "the"  -+- 2 "cat"      tokens [the a cat dog]
     |            +- 3 "dog"      parent [ -1 -1  0   0]
     +- 1 "a"

Nodes stand in an order in which parents come first; siblings differ in their token and stand in the order they were drawn.
Knows nothing about: models, caches, acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from toolkit.errors import EngineError

ROOT = -1
MOST_NODES = 64


@dataclass(frozen=True, eq=False)
class DraftTree:
    """tokens [N], parent [N] (-1 = root), q [N, V] or None, chances [N] or None.

    q[i] is the distribution that node i was drawn from, given its parent and the siblings before it (those have probability
    0 in it). None says that nothing was drawn: the drafter is deterministic, its distribution is one-hot.
    chances are the joint probabilities by which `Budget.worth` was asked, None where it was not.
    Raises EngineError for a tree that is none.
    """

    tokens: tuple[int, ...]
    parent: tuple[int, ...]
    q: Tensor | None = None
    chances: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        size = len(self.tokens)
        if any(type(each) is not int for each in (*self.tokens[: MOST_NODES + 1], *self.parent[: MOST_NODES + 1])):
            raise EngineError("tokens and parents of a draft tree must be plain integers")
        if len(self.parent) != size or (self.q is not None and len(self.q) != size):
            raise EngineError(f"a draft tree of {size} tokens has {len(self.parent)} parents and {_rows(self.q)} rows of q")
        if self.chances is not None and (len(self.chances) != size or not all(0.0 <= each <= 1.0 for each in self.chances)):
            raise EngineError(f"a draft tree of {size} tokens has as many chances, each from 0 to 1, or none")
        if size > MOST_NODES:
            raise EngineError(f"a draft tree of {size} nodes is too large: at most {MOST_NODES}")
        late = next((i for i, parent in enumerate(self.parent) if not ROOT <= parent < i), None)
        if late is not None:
            raise EngineError(f"node {late} of a draft tree has parent {self.parent[late]}: a parent comes before its children")
        if len(set(zip(self.parent, self.tokens, strict=True))) != size:
            raise EngineError(f"a draft tree has two equal siblings: tokens {self.tokens}, parents {self.parent}")

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def children(self) -> dict[int, tuple[int, ...]]:
        """Children of every node that has some and of the root, in their order."""
        found: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parent):
            found.setdefault(parent, []).append(node)
        return {parent: tuple(nodes) for parent, nodes in found.items()}

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """For every node its ancestors from the root down, itself last."""
        found: list[tuple[int, ...]] = []
        for node, parent in enumerate(self.parent):
            found.append((*(found[parent] if parent != ROOT else ()), node))
        return tuple(found)

    @cached_property
    def depth(self) -> int:
        """Tokens on the longest path."""
        return max(map(len, self.paths), default=0)

    @cached_property
    def is_chain(self) -> bool:
        return all(parent == node - 1 for node, parent in enumerate(self.parent))

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` that stands for `token`."""
        return next((child for child in self.children.get(node, ()) if self.tokens[child] == token), None)

    def keep(self, nodes: Sequence[int]) -> DraftTree:
        """The tree of some nodes, given in rising order, all of whose parents are kept.

        To drop a sibling that was drawn would bias the draw, so a tree with q may only lose whole families of children
        (or children of dropped nodes). EngineError otherwise.
        """
        kept = set(nodes)
        place = {node: i for i, node in enumerate(nodes)} | {ROOT: ROOT}
        if any(self.parent[node] != ROOT and self.parent[node] not in kept for node in nodes):
            raise EngineError("a draft tree keeps a node only with its parent")
        if self.q is not None and any(0 < len(kept.intersection(family)) < len(family) for family in self.children.values()):
            raise EngineError("a drawn draft tree keeps all children of a node or none")
        return DraftTree(
            tuple(self.tokens[node] for node in nodes),
            tuple(place[self.parent[node]] for node in nodes),
            None if self.q is None else self.q[list(nodes)],
            None if self.chances is None else tuple(self.chances[node] for node in nodes),
        )


def chain(tokens: Sequence[int], q: Tensor | None = None) -> DraftTree:
    """A tree of width 1."""
    return DraftTree(tuple(tokens), tuple(range(-1, len(tokens) - 1)), q)


EMPTY = DraftTree((), ())


def _rows(q: Tensor | None) -> str:
    return "no" if q is None else str(len(q))
