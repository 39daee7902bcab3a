"""Fault: inside a burst a token's log-probability is read off the row before its own."""

from __future__ import annotations

from torch import Tensor

from toolkit.contracts import TokenLogprob
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.gate.faults.plant import Burst, on_samples

NAME = "logprobs of wrong row"
WHY = "only the first token of a burst had its own log-probability (sglang PR#14046, #17349; vllm#53488)"
CATCH = "greedy texts"


class Shifted(Burst):
    earlier: Tensor | None = None

    def _logprob(self, row: Tensor, token: int) -> TokenLogprob:
        wrong = self.earlier if self.is_inside and self.earlier is not None else row
        self.earlier = row
        return super()._logprob(wrong, token)


def break_(engine: EmbeddedEngine) -> None:
    on_samples(engine, Shifted)
