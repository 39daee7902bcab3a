"""Fault: no penalty acts inside a burst."""

from __future__ import annotations

from torch import Tensor

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.gate.faults.plant import Burst, on_samples

NAME = "penalties ignored"
WHY = "the one-model speculative path dropped penalties without a word (TensorRT-LLM PR#17701; vllm#18902)"
CATCH = "greedy texts"


class Broken(Burst):
    def _ready(self, row: Tensor) -> Tensor | None:
        with self.given(
            **({"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0} if self.is_inside else {})
        ):
            return super()._ready(row)


def break_(engine: EmbeddedEngine) -> None:
    on_samples(engine, Broken)
