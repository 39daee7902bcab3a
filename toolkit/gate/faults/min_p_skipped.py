"""Fault: min-p acts on no token of a pass that verifies drafts."""

from __future__ import annotations

from torch import Tensor

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.loops.walk import Walk
from toolkit.gate.faults.plant import Burst, on_samples

NAME = "min p skipped"
WHY = "min_p was neither applied nor refused in EAGLE's verification (sglang#10617); on the bonus token only (vllm PR#42802)"
CATCH = "canaries"


class Broken(Burst):
    def _choose(self, row: Tensor, walk: Walk) -> tuple[int, int | None]:
        with self.given(**({"min_p": 0.0} if self.is_verifying else {})):
            return super()._choose(row, walk)


def break_(engine: EmbeddedEngine) -> None:
    on_samples(engine, Broken)
