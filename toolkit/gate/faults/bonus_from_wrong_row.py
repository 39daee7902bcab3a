"""Fault: the token behind the last accepted draft is drawn from the row before it."""

from __future__ import annotations

from torch import Tensor

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.loops.speculative import Line
from toolkit.engine.loops.walk import Walk

NAME = "bonus from wrong row"
WHY = "an index into the verify pass's logits is one short where everything was accepted: `alpha, beta, gamma, gamma, delta` (kekzl/imp#667)"
CATCH = "greedy texts"


def break_(engine: EmbeddedEngine) -> None:
    class Broken(Line):
        def verify(self, rows: Tensor) -> Walk:
            tree, rows = self._tree, rows.clone()
            trunk = len(rows) - len(tree)
            for node in range(len(tree)):
                if node not in tree.children:
                    rows[trunk + node] = rows[trunk + tree.parent[node]]
            return super().verify(rows)

    engine._line = Broken
