"""Fault: penalties know the tokens before a burst and none of the burst itself."""

from __future__ import annotations

from torch import Tensor

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.gate.faults.plant import Burst, on_samples

NAME = "penalty once per burst"
WHY = "one penalty for all rows of a verify pass, updated with the last token only: a relaxed version of penalties (sglang PR#33643)"
CATCH = "greedy texts"


class Late(Burst):
    def _ready(self, row: Tensor) -> Tensor | None:
        ids, fresh = self.ids, len(self.ids) - self.before
        self.ids = ids[: self.before]
        try:
            with self.given(min_tokens=max(0, self.params.min_tokens - fresh)):
                return super()._ready(row)
        finally:
            self.ids = ids


def break_(engine: EmbeddedEngine) -> None:
    on_samples(engine, Late)
