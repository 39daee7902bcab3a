"""Fault: the token behind a wholly accepted draft is the likeliest one, not a drawn one."""

from __future__ import annotations

from torch import Tensor

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.loops.walk import Walk
from toolkit.gate.faults.plant import Burst, on_samples

NAME = "bonus token greedy"
WHY = "a path without rejection falls back to the argmax (SGLang's verification on HIP without rejection sampling)"
CATCH = "sampled texts"


class Decided(Burst):
    def _choose(self, row: Tensor, walk: Walk) -> tuple[int, int | None]:
        if walk.taken and not walk.tokens:
            return int(row.argmax()), None
        return super()._choose(row, walk)


def break_(engine: EmbeddedEngine) -> None:
    on_samples(engine, Decided)
