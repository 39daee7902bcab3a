"""Job: one request inside the engine - its sequences, its books, its way to tell the caller.

A loop (toolkit/engine/loops) is a generator over a job: it yields asks ("give me logits of the last rows of these
sequences") and is sent the logits. It never sees other requests; the scheduler puts the asks of all jobs into one pass.
Knows nothing about: the model, other jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from toolkit.contracts import CompiledGrammar, Event, Request, Timing, Tokenizer, Usage
from toolkit.engine.sequence import Sequence
from toolkit.kv.table import BlockTable


@dataclass(frozen=True, slots=True)
class Ask:
    """Compute all pending tokens of a sequence and return logits [rows, V] of the last `rows` of them.

    With `targets`, one id for each of those rows, only the ids' log-probabilities [rows] come back.
    """

    sequence: Sequence
    rows: int = 1
    targets: tuple[int, ...] = ()


Loop = Generator[list[Ask], list[Tensor], None]


@dataclass(slots=True)
class Books:
    """What a job has cost so far; becomes the `usage` of its results."""

    cached_tokens: int = 0
    forced_tokens: int = 0
    passes: int = 0
    rows: int = 0
    blocks_peak: int = 0
    blocks_shared: int = 0


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way. `reserve` is the most blocks it can ever hold: admission counts with that."""

    request: Request
    prompt: list[int]
    tokenizer: Tokenizer
    grammar: CompiledGrammar | None
    max_tokens: int
    reserve: int
    loop: Callable[[Job, Sequence], Loop]
    sink: Callable[[Any], None]  # where events (and the scores of a score loop) go
    submitted: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    first_token: float = 0.0
    cancelled: bool = False
    books: Books = field(default_factory=Books)
    sequences: list[Sequence] = field(default_factory=list)
    outbox: list[Any] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.request.id

    def tell(self, event: Event | object) -> None:
        """Keep an event until `flush`: a caller hears of the end of a request only when its blocks are free."""
        self.outbox.append(event)

    def flush(self) -> None:
        for event in self.outbox:
            self.sink(event)
        self.outbox.clear()

    def start(self, table: BlockTable) -> Loop:
        """Open the loop over a sequence that holds the prompt."""
        sequence = Sequence(self.prompt, table, self.grammar.matcher() if self.grammar is not None else None)
        self.sequences.append(sequence)
        return self.loop(self, sequence)

    def fork(self, sequence: Sequence) -> Sequence:
        twin = sequence.fork()
        self.sequences.append(twin)
        return twin

    def drop(self, sequence: Sequence) -> None:
        self.sequences.remove(sequence)
        sequence.release()

    def drop_all(self) -> None:
        while self.sequences:
            self.drop(self.sequences[-1])

    def count_blocks(self) -> None:
        """Update the peak of blocks held by this job, each counted once however many of its sequences share it."""
        held = {block for sequence in self.sequences for block in sequence.table.blocks}
        if len(held) > self.books.blocks_peak and self.sequences:
            pool = self.sequences[0].table.pool
            self.books.blocks_peak = len(held)
            self.books.blocks_shared = sum(pool.holders(block) > 1 for block in held)

    def note_token(self) -> None:
        """The first generated token exists now."""
        if not self.first_token:
            self.first_token = time.perf_counter()

    def usage(self, output_tokens: int) -> Usage:
        books = self.books
        return Usage(
            input_tokens=len(self.prompt),
            cached_tokens=books.cached_tokens,
            output_tokens=output_tokens,
            forced_tokens=books.forced_tokens,
            passes=books.passes,
            rows=books.rows,
            kv_blocks_peak=books.blocks_peak,
            kv_blocks_shared=books.blocks_shared,
        )

    def timing(self, output_tokens: int) -> Timing:
        end = time.perf_counter()
        first = self.first_token or end
        decode = end - first
        return Timing(
            queue_s=self.started - self.submitted,
            ttft_s=first - self.submitted,
            e2e_s=end - self.submitted,
            decode_tok_s=(output_tokens - 1) / decode if output_tokens > 1 and decode > 0 else 0.0,
        )
