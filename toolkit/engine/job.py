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

from toolkit.contracts import CompiledGrammar, Event, Failed, Request, Timing, Tokenizer, Usage
from toolkit.draft.tree import EMPTY, DraftTree
from toolkit.engine.sequence import Move, Sequence
from toolkit.engine.watch import Checks
from toolkit.errors import EngineError, ToolkitError
from toolkit.kv.table import BlockTable


@dataclass(frozen=True, slots=True)
class Ask:
    """Compute all pending tokens of a sequence and return logits [rows, V] of the last `rows` of them.

    With `targets`, one id for each of those rows, only the ids' log-probabilities [rows] come back. A `tree` is computed
    behind the last pending token, its logits [N, V] follow; it hangs on the sequence until `settle`. Into `hidden`, where given,
    go the hidden rows of everything that was computed, in order.
    """

    sequence: Sequence
    rows: int = 1
    targets: tuple[int, ...] = ()
    tree: DraftTree = EMPTY
    hidden: list[Tensor] | None = None


Loop = Generator[list[Ask], list[Tensor], None]


@dataclass(slots=True)
class Books:
    """What a job has cost so far; becomes the `usage` of its results."""

    cached_tokens: int = 0
    restored_tokens: int = 0
    forced_tokens: int = 0
    passes: int = 0
    rows: int = 0
    blocks_peak: int = 0
    blocks_shared: int = 0
    steps: int = 0
    appended: int = 0
    verify_passes: int = 0
    proposed: list[int] = field(default_factory=list)  # by position; nodes of one depth count once
    accepted: list[int] = field(default_factory=list)
    nodes: int = 0
    trimmed: int = 0
    discarded: int = 0
    rechecked: int = 0
    draft_s: float = 0.0
    rested: int = 0
    guard_s: float = 0.0

    def count_step(self, tree: DraftTree, accepted: int, emitted: int) -> None:
        """A sample took what one pass gave it: `accepted` nodes of the tree, then a token of its own and what that forced."""
        self.steps += 1
        self.trimmed += emitted == accepted
        self.appended += max(0, emitted - accepted - 1)
        self.verify_passes += len(tree) > 0
        self.nodes += len(tree)
        for counts, depth in ((self.proposed, tree.depth), (self.accepted, accepted)):
            counts += [0] * (depth - len(counts))
            for position in range(depth):
                counts[position] += 1


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
    checks: Checks | None = None  # what its texts are judged by
    notes: tuple[str, ...] = ()  # of every result
    is_tainted: bool = False  # speculation was caught: the keys and values that it left behind are not to be used again
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

    def fail(self, error: BaseException) -> None:
        """Tell that the request ended in an error, one of this package's whatever it was."""
        if not isinstance(error, ToolkitError):
            error = EngineError(f"request {self.id!r} failed inside the engine: {type(error).__name__}: {error}")
        self.tell(Failed(self.id, error))
        self.flush()

    def start(self, table: BlockTable, move: Move) -> Loop:
        """Open the loop over a sequence that holds the prompt."""
        sequence = Sequence(self.prompt, table, self.grammar.matcher() if self.grammar is not None else None, move)
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
            restored_tokens=books.restored_tokens,
            output_tokens=output_tokens,
            forced_tokens=books.forced_tokens,
            passes=books.passes,
            rows=books.rows,
            steps=books.steps,
            appended=books.appended,
            verify_passes=books.verify_passes,
            proposed=books.nodes,
            accepted=sum(books.accepted),
            proposed_by_position=tuple(books.proposed),
            accepted_by_position=tuple(books.accepted),
            trimmed=books.trimmed,
            discarded=books.discarded,
            rechecked=books.rechecked,
            draft_s=books.draft_s,
            rested=books.rested,
            guard_s=books.guard_s,
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
