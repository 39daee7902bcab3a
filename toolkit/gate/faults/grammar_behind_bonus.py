"""Fault: the grammar is not told of the token behind accepted drafts."""

from __future__ import annotations

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.loops.walk import Walk
from toolkit.gate.faults.plant import Burst, on_samples

NAME = "grammar behind bonus"
WHY = "the grammar stays one token behind the text: doubled braces and keys (vllm#48228, PR#44993; sglang#12461)"
CATCH = "greedy texts"


class Behind(Burst):
    def _append(self, token: int, child: int | None, walk: Walk) -> None:
        sequence, matcher = self.sequence, self.sequence.matcher
        if child is None and walk.taken:
            sequence.matcher = None
        super()._append(token, child, walk)
        sequence.matcher = matcher


def break_(engine: EmbeddedEngine) -> None:
    on_samples(engine, Behind)
