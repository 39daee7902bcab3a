"""Fault: accepted drafts are reported with a log-probability of 0."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from toolkit.contracts import TokenLogprob
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.gate.faults.plant import Burst, on_samples

NAME = "logprobs are zero"
WHY = "with a draft model every log-probability was 0.0 (llama.cpp#27972)"
CATCH = "greedy texts"


class Sure(Burst):
    def _logprob(self, row: Tensor, token: int) -> TokenLogprob:
        found = super()._logprob(row, token)
        return replace(found, logprob=0.0) if self.is_verifying else found


def break_(engine: EmbeddedEngine) -> None:
    on_samples(engine, Sure)
