"""Fault: the limit of a text is looked at between passes only."""

from __future__ import annotations

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.loops.walk import Walk
from toolkit.gate.faults.plant import Burst, on_samples

NAME = "max tokens overrun"
WHY = "max_tokens=64 gave 64 to 71 tokens (sglang#39826, PR#37450)"
CATCH = "greedy texts"


_MORE = 3


class Overrun(Burst):
    @property
    def room(self) -> int:
        return super().room + _MORE

    def _commit(self, token: int) -> None:
        super()._commit(token)
        if self.reason == "length":
            self.reason = None

    def _go(self, walk: Walk) -> None:
        super()._go(walk)
        if self.reason is None and len(self.ids) >= self.job.max_tokens:
            self.reason = "length"


def break_(engine: EmbeddedEngine) -> None:
    on_samples(engine, Overrun)
