"""Fault: the counter of accepted drafts also counts the token that the target adds."""

from __future__ import annotations

from torch import Tensor

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.loops.speculative import Line
from toolkit.engine.loops.walk import Walk

NAME = "counters off by one"
WHY = "834 proposed and 830 accepted at three a pass make 1,108 tokens, the output had 1,024: counters that do not add up go unnoticed"
CATCH = "greedy texts"


def break_(engine: EmbeddedEngine) -> None:
    class Broken(Line):
        def verify(self, rows: Tensor) -> Walk:
            walk = super().verify(rows)
            if walk.taken:
                self.job.books.accepted[len(walk.taken) - 1] += 1
            return walk

    engine._line = Broken
