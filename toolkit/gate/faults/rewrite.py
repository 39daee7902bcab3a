"""Rewrite: what most faults share - a verifier that commits other tokens than it has verified.

In: the tokens of a pass that accepted drafts.   Out: a sample whose text holds other ones, everything else unaware of it.
Half of the requests (by their id) tell the grammar of the wrong tokens, as servers do that advance it over what was committed; there
the grammar may refuse them. The cache keeps what was computed for the true ones.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable

from torch import Tensor

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.loops.plain import Sample
from toolkit.engine.loops.speculative import Line
from toolkit.engine.loops.walk import Walk
from toolkit.text.stream import TextStream

Rewrite = Callable[[list[int], random.Random], list[int]]
CHANCE = 0.5  # that a pass is hit, until one was


def rewriting(name: str, rewrite: Rewrite, engine: EmbeddedEngine) -> None:
    """From now on each text of the engine has one of its passes rewritten; `rewrite` gives the tokens as they are where it cannot."""

    class Broken(Line):
        is_hit = False

        def verify(self, rows: Tensor) -> Walk:
            before = len(self.sample.ids)
            walk = super().verify(rows)
            burst = self.sample.ids[before:]
            dice = random.Random(f"{name}/{self.job.id}/{before}")
            if not self.is_hit and walk.taken and self.sample.reason is None and dice.random() < CHANCE:
                wrong = rewrite(list(burst), dice)
                self.is_hit = wrong != burst
                if self.is_hit:
                    commit(self.sample, before, wrong)
            return walk

    engine._line = Broken


def commit(sample: Sample, before: int, tokens: list[int]) -> None:
    """The text is `tokens` from place `before` on."""
    job, sequence = sample.job, sample.sequence
    true = sample.ids[before:]
    sample.ids[before:] = tokens
    del sequence.tokens[sequence.prompt_length + before :]
    sequence.tokens += tokens
    if sequence.computed >= len(sequence.tokens):
        sequence.table.truncate(len(sequence.tokens) - 1)
    if sequence.matcher is not None and zlib.crc32(job.id.encode()) % 2:
        sequence.matcher.rollback(len(true))
        sequence.matcher.advance(tokens)
    stream = TextStream(job.tokenizer, sample.params.stop)
    sample._texts = [stream.feed(token) for token in sample.ids]
    sample._stream = stream
