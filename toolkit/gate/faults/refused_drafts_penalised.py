"""Fault: drafts that were refused count as tokens of the text for penalties."""

from __future__ import annotations

from torch import Tensor

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.loops.walk import Walk
from toolkit.gate.faults.plant import Burst, on_samples

NAME = "refused drafts penalised"
WHY = "rejected drafts were recorded in the penalty state (vmlx-swift#357)"
CATCH = "greedy texts"


class Resentful(Burst):
    refused: tuple[int, ...] = ()

    def _go(self, walk: Walk) -> None:
        super()._go(walk)
        self.refused += tuple(token for node, token in enumerate(walk.tree.tokens) if node not in walk.taken)

    def _ready(self, row: Tensor) -> Tensor | None:
        ids = self.ids
        self.ids = [*ids, *self.refused]
        try:
            with self.given(min_tokens=0 if len(ids) >= self.params.min_tokens else self.params.min_tokens):
                return super()._ready(row)
        finally:
            self.ids = ids


def break_(engine: EmbeddedEngine) -> None:
    on_samples(engine, Resentful)
