"""Fault: top-p acts on what top-k left, renormalised, not on the distribution itself."""

from __future__ import annotations

import torch
from torch import Tensor

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.loops.walk import Walk
from toolkit.gate.faults.plant import Burst, on_samples

NAME = "top k before top p"
WHY = "top_k=4, top_p=.82 on [.35 .25 .20 .05 ...]: joint filtering keeps three tokens, top-k first keeps other ones (sglang PR#36173)"
CATCH = "canaries"


class InTurn(Burst):
    def _choose(self, row: Tensor, walk: Walk) -> tuple[int, int | None]:
        if self.is_verifying and 0 < self.params.top_k < len(row):
            kept = row.topk(self.params.top_k)
            row = torch.full_like(row, -torch.inf).index_copy(0, kept.indices, kept.values)
        return super()._choose(row, walk)


def break_(engine: EmbeddedEngine) -> None:
    on_samples(engine, InTurn)
