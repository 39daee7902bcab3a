"""Fault: every pass draws with the random numbers of the first one."""

from __future__ import annotations

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.loops.walk import Walk
from toolkit.gate.faults.plant import Burst, on_samples
from toolkit.sample.draw import generator

NAME = "generator restarted"
WHY = "a seeded request seeds its generator before every pass: the n-th token of each burst has the same quantile (per-request seeds under MTP)"
CATCH = "sampled texts"


class Restarted(Burst):
    def _go(self, walk: Walk) -> None:
        self._random = generator(self.seed, self.index)
        super()._go(walk)


def break_(engine: EmbeddedEngine) -> None:
    on_samples(engine, Restarted)
