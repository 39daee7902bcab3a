"""Fault: the number by which a draft was refused also draws the token in its place."""

from __future__ import annotations

import torch
from torch import Tensor

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.loops.walk import Walk
from toolkit.gate.faults.plant import Burst, on_samples
from toolkit.sample.accept import checked, dense, residual

NAME = "one random number"
WHY = "refused means that the number was large: reused, it draws from the upper end of what is left of p (two kernels given one array of uniforms)"
CATCH = "sampled texts"
ARM = "flat"


class Thrifty(Burst):
    def _choose(self, row: Tensor, walk: Walk) -> tuple[int, int | None]:
        if walk.q is None or not walk.tokens or self.params.temperature == 0:
            return super()._choose(row, walk)
        p, at = dense(row, self.params), self.uniform()
        for place, (token, q) in enumerate(zip(walk.tokens, checked(walk.q, walk.tokens, len(row)), strict=True)):
            if at * float(q[token]) < float(p[token]):
                return token, place
            p = residual(p, q)
        sums = p.cumsum(0)
        return int(torch.searchsorted(sums, at * sums[-1], right=True)), None


def break_(engine: EmbeddedEngine) -> None:
    on_samples(engine, Thrifty)
