"""Fault: the number that refused a draft also draws the token that comes instead."""

from __future__ import annotations

import torch
from torch import Tensor

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.loops.walk import Walk
from toolkit.gate.faults.plant import Burst, on_samples
from toolkit.sample.accept import checked, dense, residual

NAME = "one random number"
WHY = "acceptance and correction share a uniform: a refusal says that it was high, so corrections come from the end of the vocabulary"
CATCH = "sampled texts"
ARM = "drawn"


class Thrifty(Burst):
    def _choose(self, row: Tensor, walk: Walk) -> tuple[int, int | None]:
        if walk.q is None or not walk.tokens or self.params.temperature == 0:
            return super()._choose(row, walk)
        p, at = dense(row, self.params), self.uniform()
        for place, (token, q) in enumerate(zip(walk.tokens, checked(walk.q, walk.tokens, len(row)), strict=True)):
            if at * float(q[token]) < float(p[token]):
                return token, place
            p = residual(p, q)
        return min(int(torch.searchsorted(p.cumsum(0), at, right=True)), len(p) - 1), None


def break_(engine: EmbeddedEngine) -> None:
    on_samples(engine, Thrifty)
