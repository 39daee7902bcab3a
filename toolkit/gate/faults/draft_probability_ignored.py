"""Fault: a drawn token is accepted wherever the target could draw it, whatever the drafter gave it."""

from __future__ import annotations

from torch import Tensor

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.loops.walk import Walk
from toolkit.gate.faults.plant import Burst, on_samples
from toolkit.sample.accept import dense

NAME = "draft probability ignored"
WHY = "an acceptance threshold below 1 that nobody asked for: the text is the drafter's (SGLang's accept-threshold options, vLLM's method fly)"
CATCH = "sampled texts"
ARM = "drawn"


class Credulous(Burst):
    def _choose(self, row: Tensor, walk: Walk) -> tuple[int, int | None]:
        if walk.tokens and self.params.temperature > 0:
            p = dense(row, self.params)
            for place, token in enumerate(walk.tokens):
                if float(p[token]) > 0.0:
                    return token, place
        return super()._choose(row, walk)


def break_(engine: EmbeddedEngine) -> None:
    on_samples(engine, Credulous)
