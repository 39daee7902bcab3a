"""Fault: after a refusal the token is drawn from max(0, p - q) as it is, whose sum is below 1."""

from __future__ import annotations

import torch
from torch import Tensor

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.loops.walk import Walk
from toolkit.gate.faults.plant import Burst, on_samples
from toolkit.sample.accept import checked, dense

NAME = "residual not renormalised"
WHY = "what is missing to 1 falls to the last token of the vocabulary: max(0, p - q) of 2211.17192 without its norm"
CATCH = "sampled texts"
ARM = "flat"


class Unnormed(Burst):
    def _choose(self, row: Tensor, walk: Walk) -> tuple[int, int | None]:
        if walk.q is None or not walk.tokens or self.params.temperature == 0:
            return super()._choose(row, walk)
        p = dense(row, self.params)
        for place, (token, q) in enumerate(zip(walk.tokens, checked(walk.q, walk.tokens, len(row)), strict=True)):
            if self.uniform() * float(q[token]) < float(p[token]):
                return token, place
            p = (p - q).clamp(min=0.0)
        return min(int(torch.searchsorted(p.cumsum(0), self.uniform(), right=True)), len(p) - 1), None


def break_(engine: EmbeddedEngine) -> None:
    on_samples(engine, Unnormed)
