"""Fault: all samples of a request draw with the same random numbers."""

from __future__ import annotations

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.loops.walk import Walk
from toolkit.gate.faults.plant import Burst, on_samples
from toolkit.sample.draw import generator

NAME = "seed shared by rows"
WHY = "one generator state is copied to every row of a batch: n = 4 gives four times one text"
CATCH = "sampled texts"


class Same(Burst):
    is_seeded = False

    def _go(self, walk: Walk) -> None:
        if not self.is_seeded:
            self.is_seeded, self._random = True, generator(self.seed)
        super()._go(walk)


def break_(engine: EmbeddedEngine) -> None:
    on_samples(engine, Same)
