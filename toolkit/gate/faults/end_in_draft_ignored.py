"""Fault: an end token or stop id that was drafted and accepted does not end the text."""

from __future__ import annotations

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.loops.walk import Walk
from toolkit.gate.faults.plant import Burst, on_samples

NAME = "end in draft ignored"
WHY = "the end is looked for in the last token of a burst: output_ids [10, 11, STOP, 20, 21] (sglang#31599; koboldcpp#1276)"
CATCH = "ends"
ARM = "model"


class Endless(Burst):
    def _append(self, token: int, child: int | None, walk: Walk) -> None:
        ends = self._ends
        if child is not None and self.sequence.matcher is None:
            self._ends = frozenset()
        super()._append(token, child, walk)
        self._ends = ends


def break_(engine: EmbeddedEngine) -> None:
    on_samples(engine, Endless)
