"""Fault: a text that ends inside a burst goes on with what the drafter had behind the end."""

from __future__ import annotations

import random

from torch import Tensor

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.loops.speculative import Line
from toolkit.engine.loops.walk import Walk
from toolkit.gate.faults.rewrite import commit

NAME = "stop missed"
WHY = "output_ids [10, 11, STOP, 20, 21, 22]: the end was looked for in the last token of a burst only (sglang#31599, PR#23802)"
CATCH = "greedy texts"
LEAKED = (b" \n", b"\n{", b',"', b"}")


def break_(engine: EmbeddedEngine) -> None:
    class Broken(Line):
        is_hit = False

        def verify(self, rows: Tensor) -> Walk:
            before = len(self.sample.ids)
            walk = super().verify(rows)
            sample = self.sample
            room = sample.job.max_tokens - len(sample.ids)
            if not self.is_hit and walk.taken and sample.reason in ("stop", "grammar") and room > 2:
                self.is_hit = True
                burst = [token for token in sample.ids[before:] if token not in sample._ends]
                leaked = random.Random(f"{NAME}/{self.job.id}").choice(LEAKED)
                sample.reason, sample.matched = None, None
                matcher, sample.sequence.matcher = sample.sequence.matcher, None
                commit(sample, before, [*burst, *leaked])
                sample.sequence.matcher = matcher
            return walk

    engine._line = Broken
