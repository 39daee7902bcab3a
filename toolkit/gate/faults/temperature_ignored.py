"""Fault: tokens of a pass that verifies drafts are drawn at temperature 1."""

from __future__ import annotations

from torch import Tensor

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.loops.walk import Walk
from toolkit.gate.faults.plant import Burst, on_samples

NAME = "temperature ignored"
WHY = "the verifier's probabilities are taken before the division by the temperature"
CATCH = "sampled texts"


class Broken(Burst):
    def _choose(self, row: Tensor, walk: Walk) -> tuple[int, int | None]:
        with self.given(**({"temperature": 1.0} if self.is_verifying and self.params.temperature > 0 else {})):
            return super()._choose(row, walk)


def break_(engine: EmbeddedEngine) -> None:
    on_samples(engine, Broken)
