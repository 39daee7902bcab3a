"""Fault: inside a burst a text may end before its minimum."""

from __future__ import annotations

from torch import Tensor

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.gate.faults.plant import Burst, on_samples

NAME = "min tokens ignored"
WHY = "min_tokens counts passes, or is one off behind a draft (vllm PR#41768; sglang PR#33643)"
CATCH = "canaries"


class Broken(Burst):
    def _ready(self, row: Tensor) -> Tensor | None:
        with self.given(**({"min_tokens": 0} if self.is_inside else {})):
            return super()._ready(row)


def break_(engine: EmbeddedEngine) -> None:
    on_samples(engine, Broken)
