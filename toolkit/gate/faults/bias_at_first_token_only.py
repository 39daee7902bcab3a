"""Fault: the logit bias acts on the first token of a burst and on none behind it."""

from __future__ import annotations

from torch import Tensor

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.gate.faults.plant import Burst, on_samples

NAME = "bias at first token only"
WHY = "logit_bias {279: -100} with EAGLE: the token came all the same, the bias was on one row of each pass (sglang#10617)"
CATCH = "greedy texts"


class Broken(Burst):
    def _ready(self, row: Tensor) -> Tensor | None:
        with self.given(**({"logit_bias": {}} if self.is_inside else {})):
            return super()._ready(row)


def break_(engine: EmbeddedEngine) -> None:
    on_samples(engine, Broken)
