"""Walk: one sample's way down a draft tree that one pass has computed.

    rows   [ forced ... | last ][ node 0 ][ node 1 ] ...     the row of a place says what follows it
    place  the root (the last committed token), a node, or None: the last token is in no row, the pass is used up

In: the tree and the logits of the pass.   Out: which nodes were taken, in order.
Knows nothing about: how tokens are drawn, what ends a text.
"""

from __future__ import annotations

from torch import Tensor

from toolkit.draft.tree import ROOT, DraftTree


class Walk:
    """Begins at the root. `path` are the nodes whose tokens were appended to the sequence."""

    def __init__(self, tree: DraftTree, rows: Tensor) -> None:
        """rows [R + N, V], R >= 1."""
        self.tree = tree
        self.path: list[int] = []
        self.taken: list[int] = []  # as `path`, with the node of an end token
        self._rows = rows
        self._trunk = rows.shape[0] - len(tree)
        self._place: int | None = ROOT

    @property
    def row(self) -> Tensor | None:
        """Logits [V] of what follows, None where no row of this pass says it."""
        return None if self._place is None else self._rows[self._trunk + self._place]

    @property
    def nodes(self) -> tuple[int, ...]:
        """Children of this place, as they were drawn."""
        return () if self._place is None else self.tree.children.get(self._place, ())

    @property
    def tokens(self) -> list[int]:
        """Tokens of those children."""
        return [self.tree.tokens[node] for node in self.nodes]

    @property
    def q(self) -> Tensor | None:
        """[n, V] of those children, None where nothing was drawn."""
        return None if self.tree.q is None else self.tree.q[list(self.nodes)]

    def child(self, token: int) -> int | None:
        """The place among the children that stands for `token`."""
        return self.tokens.index(token) if token in self.tokens else None

    def go(self, child: int | None, appended: bool) -> None:
        """On to the child at that place, None = the token that was taken is in no row. An end token is not appended."""
        self._place = None if child is None else self.nodes[child]
        if self._place is not None:
            self.taken.append(self._place)
            if appended:
                self.path.append(self._place)
