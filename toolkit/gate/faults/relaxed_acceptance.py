"""Fault: a draft is accepted though the target only likes it well enough."""

from __future__ import annotations

from torch import Tensor

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.loops.walk import Walk
from toolkit.gate.faults.plant import Burst, on_samples

NAME = "relaxed acceptance"
WHY = (
    "relaxed or typical acceptance is on without being asked for (TensorRT-LLM's relaxed acceptance; Medusa's swapped defaults)"
)
CATCH = "greedy texts"


_NEAR = 1.0  # nats


class Easygoing(Burst):
    def _choose(self, row: Tensor, walk: Walk) -> tuple[int, int | None]:
        liked = [place for place, token in enumerate(walk.tokens) if float(row[token]) > float(row.max()) - _NEAR]
        if liked:
            return walk.tokens[liked[-1]], liked[-1]
        return super()._choose(row, walk)


def break_(engine: EmbeddedEngine) -> None:
    on_samples(engine, Easygoing)
