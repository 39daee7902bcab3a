"""Fault: inside a burst a token is masked by what the grammar allowed before the last one."""

from __future__ import annotations

from torch import Tensor

from toolkit.contracts import Matcher
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.gate.faults.plant import Burst, on_samples

NAME = "mask of wrong row"
WHY = "rows of the bitmask are shifted against the drafts: `Tokens not accepted` and doubled characters (sglang#12461; vllm#31858's class)"
CATCH = "greedy texts"


class Shifted(Burst):
    earlier: Matcher | None = None

    def _ready(self, row: Tensor) -> Tensor | None:
        sequence, matcher = self.sequence, self.sequence.matcher
        if matcher is None:
            return super()._ready(row)
        if self.is_inside:
            sequence.matcher = self.earlier
        self.earlier = matcher.fork()
        try:
            return super()._ready(row)
        finally:
            sequence.matcher = matcher


def break_(engine: EmbeddedEngine) -> None:
    on_samples(engine, Shifted)
