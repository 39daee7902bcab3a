"""Fault: after a burst a slot of the cache holds what another token left there."""

from __future__ import annotations

import random

from torch import Tensor

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.loops.speculative import Line
from toolkit.engine.loops.walk import Walk

NAME = "stale KV"
WHY = "keys and values of refused drafts stay in the cache and the next pass reads them (vllm#40831, #36872; sglang PR#19897)"
CATCH = "greedy texts"
CHANCE = 0.5


def break_(engine: EmbeddedEngine) -> None:
    class Broken(Line):
        def verify(self, rows: Tensor) -> Walk:
            walk = super().verify(rows)
            sequence = self.sample.sequence
            dice = random.Random(f"{NAME}/{self.job.id}/{len(sequence.tokens)}")
            if walk.path and dice.random() < CHANCE:
                slots = sequence.table.slots(0, sequence.computed)
                count = min(len(walk.path), 4)
                start = dice.randrange(max(1, len(slots) - 2 * count))
                engine._forward.store.move(slots[start : start + count], slots[-count:])
            return walk

    engine._line = Broken
