"""Scheduler: which jobs run, and which of their pending tokens go into the next pass.

    waiting --(blocks for the worst case are there)--> running --(loop ends)--> done

Admission reserves the most blocks a job can ever need, so a running job never waits for memory and nothing is preempted.
One pass holds all short asks (decode rows of all jobs) and then at most one piece of one prompt: a prompt that shares its
beginning with the one before it is looked up after that one is in the prefix cache, so the shared part is computed once.
Knows nothing about: what loops do with logits, the caller's threads.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor

from toolkit.contracts import Failed
from toolkit.engine.forward import Feed, Forward
from toolkit.engine.job import Ask, Job, Loop
from toolkit.errors import CancelledError, EngineError, ToolkitError
from toolkit.kv.view import WIDE


@dataclass(slots=True, eq=False)
class _Running:
    job: Job
    loop: Loop | None = None  # None until its first step
    asks: list[Ask] = field(default_factory=list)
    answers: list[list[Tensor]] = field(default_factory=list)  # per ask, the logits of its pieces so far

    def ready(self) -> bool:
        return all(ask.sequence.pending == 0 for ask in self.asks)


class Scheduler:
    """Runs jobs to their end, one `step` (one pass) at a time. Not thread-safe: the engine's worker owns it."""

    def __init__(self, forward: Forward, *, batch_rows: int) -> None:
        self.forward = forward
        self.batch_rows = batch_rows
        self.waiting: deque[Job] = deque()
        self.running: list[_Running] = []

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    @property
    def reserved(self) -> int:
        return sum(each.job.reserve for each in self.running)

    def add(self, job: Job) -> None:
        self.waiting.append(job)

    def step(self) -> None:
        """Admit what fits, run one pass, let every loop whose asks are answered go on."""
        self._drop_cancelled()
        while self.waiting and self.reserved + self.waiting[0].reserve <= self.forward.pool.size:
            job = self.waiting.popleft()
            job.started = time.perf_counter()
            self.running.append(_Running(job))
            self._advance(self.running[-1])
        feeds, owners = self._compose()
        if feeds:
            for (each, place), logits in zip(owners, self.forward(feeds), strict=True):
                each.answers[place].append(logits)
            for each in dict.fromkeys(each for each, _ in owners):
                each.job.books.passes += 1
                each.job.count_blocks()
        for each in [each for each in self.running if each.ready()]:
            self._advance(each)

    def fail_all(self, error: ToolkitError) -> None:
        """Tell every job, running or waiting, that the engine is gone."""
        for each in list(self.running):
            self._end(each, error)
        while self.waiting:
            self._refuse(self.waiting.popleft(), error)

    def _drop_cancelled(self) -> None:
        for job in [job for job in self.waiting if job.cancelled]:
            self.waiting.remove(job)
            self._refuse(job, CancelledError(f"request {job.id!r} was cancelled before it started"))

    def _compose(self) -> tuple[list[Feed], list[tuple[_Running, int]]]:
        """The next pass: short asks of all jobs in their order, then one piece of one prompt - the one already begun, if any."""
        feeds: list[Feed] = []
        owners: list[tuple[_Running, int]] = []
        begun: list[tuple[_Running, int]] = []
        fresh: list[tuple[_Running, int]] = []
        room = self.batch_rows
        for each in self.running:
            for place, ask in enumerate(each.asks):
                if 0 < ask.sequence.pending <= min(room, WIDE) and ask.sequence.table.length:
                    room -= self._feed(each, place, ask.sequence.pending, feeds, owners)
                elif ask.sequence.pending:
                    (begun if ask.sequence.table.length else fresh).append((each, place))
        for each, place in (begun or fresh)[:1]:
            sequence = each.asks[place].sequence
            each.job.books.cached_tokens += self.forward.find_prefix(sequence) if not sequence.table.length else 0
            if room:
                self._feed(each, place, min(room, sequence.pending), feeds, owners)
        return feeds, owners

    def _feed(self, each: _Running, place: int, count: int, feeds: list[Feed], owners: list[tuple[_Running, int]]) -> int:
        ask = each.asks[place]
        after = ask.sequence.pending - count
        feeds.append(Feed(ask.sequence, count, min(count, max(0, ask.rows - after))))
        owners.append((each, place))
        each.job.books.rows += count
        return count

    def _advance(self, each: _Running) -> None:
        """Send the answers to the loop and take its next asks; a loop that ends or fails frees all of its blocks."""
        try:
            with torch.inference_mode():
                if each.loop is None:
                    each.loop = each.job.start(self.forward.table())
                    each.asks = next(each.loop)
                else:
                    self._keep_prompts(each)
                    each.asks = each.loop.send([torch.cat(parts) if len(parts) > 1 else parts[0] for parts in each.answers])
            each.answers = [[] for _ in each.asks]
            each.job.flush()
        except StopIteration:
            self._end(each, None)
        except ToolkitError as error:
            self._end(each, error)
        except Exception as error:
            self._end(each, EngineError(f"request {each.job.id!r} failed inside the engine: {type(error).__name__}: {error}"))

    def _keep_prompts(self, each: _Running) -> None:
        """Remember prompts that have just been computed, so that the next record finds them."""
        for ask in each.asks:
            if ask.sequence.max_rollback == 0:
                self.forward.keep_prefix(ask.sequence)

    def _end(self, each: _Running, error: ToolkitError | None) -> None:
        if each.loop is not None:
            each.loop.close()
        self.running.remove(each)
        if error is None and each.job.request.beam is None:
            for sequence in each.job.sequences:  # a next turn of the conversation starts from here
                self.forward.keep_prefix(sequence)
        each.job.drop_all()
        if error is None:
            each.job.flush()
        else:
            self._refuse(each.job, error)

    def _refuse(self, job: Job, error: ToolkitError) -> None:
        job.tell(Failed(job.id, error))
        job.flush()
