"""Rounds: the beam searches of one lane, all of their live lines in one request a step.

    waiting --(lines for the worst case are free)--> running --(loop ends)--> done

One round: the asks of all running jobs become one batch of `/generate`, and every loop goes on with its rows. Prompts that are new
and begin alike are preceded by one request that computes their beginning once. A line whose likeliest ids hold too few allowed
ones is asked about a second time, every allowed id by name: a beam never dies of a short list.
All state is here: a server that dies in a step loses nothing but that step, which the fleet repeats.
Knows nothing about: what loops do with logits, the caller's threads, how servers are chosen.
Source: SGLang's radix cache; what is sent in a step was computed in the one before, but for the newest tokens.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import takewhile

import torch

from toolkit.contracts import Json, Usage
from toolkit.engine.job import Ask, Job, Loop
from toolkit.engine.remote import rows
from toolkit.engine.remote.connection import FailedRequestError
from toolkit.engine.remote.fleet import Fleet, Server
from toolkit.engine.remote.reply import batch, checked, costs
from toolkit.engine.sequence import Sequence as Line
from toolkit.errors import CancelledError, EngineError, ToolkitError
from toolkit.kv.blocks import BlockPool
from toolkit.kv.table import BlockTable

LINES = 1024  # live lines of a lane: a request that needs more waits
ALONE = 64  # lines asked about at a time where each is a request
SHARED = 32  # tokens that prompts begin alike with before it pays to compute that beginning first
_REMEMBERED = 4096  # beginnings that were computed


@dataclass(slots=True)
class Cost:
    """What a job has cost on servers. The first step is told apart: its prompt is what `cached` counts."""

    requests: int = 0
    sent: int = 0
    cached: int = 0
    first_cached: int | None = None
    lacked: int = 0  # lines asked about a second time

    def usage(self, base: Usage) -> Usage:
        """`base` with what only the servers know."""
        return replace(
            base, requests=self.requests, tokens_sent=self.sent, rows=self.sent - self.cached,
            cached_tokens=self.first_cached or 0, kv_blocks_peak=0, kv_blocks_shared=0,
        )  # fmt: skip


@dataclass(slots=True)
class Clock:
    """Where a lane's time went: seconds in rounds, of those waiting for servers, and of the lane's own CPU, HTTP included."""

    rounds: int = 0
    total_s: float = 0.0
    server_s: float = 0.0
    cpu_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Running:
    job: Job
    count: int  # candidates that a line needs in a step
    cost: Cost
    loop: Loop | None = None
    asks: list[Ask] = field(default_factory=list)


class Rounds:
    """Runs jobs to their end, one `step` at a time. Not thread-safe: a lane's worker owns it."""

    def __init__(
        self, fleet: Fleet, prefer: Server, *, vocab_size: int, context: int, lines: int = LINES, at_once: int = LINES,
        alone: bool = False,
    ) -> None:  # fmt: skip
        """`at_once` lines fit into one request; `alone` asks about every line by a request of its own, all of a step at once:
        SGLang's router wants that."""
        self.pool = BlockPool(lines)
        self.waiting: deque[Job] = deque()
        self.running: list[_Running] = []
        self.costs: dict[Job, Cost] = {}
        self.clock = Clock()
        self._at_once = at_once
        self._alone = ThreadPoolExecutor(ALONE, thread_name_prefix="toolkit-line") if alone else None
        self._waited = 0.0  # for servers, in the round at hand
        self._fleet, self._prefer = fleet, prefer
        self._vocab_size, self._context = vocab_size, context
        self._begun: OrderedDict[tuple[int, ...], None] = OrderedDict()

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    @property
    def blocks_held(self) -> int:
        """Lines of requests that run."""
        return self.pool.in_use

    def add(self, job: Job) -> None:
        self.waiting.append(job)

    def step(self) -> None:
        """End what was cancelled, admit what fits, send one request, let every loop go on."""
        self._end_cancelled()
        while self.waiting and sum(each.job.reserve for each in self.running) + self.waiting[0].reserve <= self.pool.size:
            self._begin(self.waiting.popleft())
        if self.running:
            began, cpu, self._waited = time.perf_counter(), time.thread_time(), 0.0
            self._round(list(self.running))
            self.clock.rounds += 1
            self.clock.total_s += time.perf_counter() - began
            self.clock.server_s += self._waited
            self.clock.cpu_s += time.thread_time() - cpu

    def fail_all(self, error: ToolkitError) -> None:
        """Tell every job, running or waiting, that the engine is gone; it does not come back."""
        if self._alone is not None:
            self._alone.shutdown(wait=False)
        for each in list(self.running):
            self._end(each, error)
        while self.waiting:
            self._refuse(self.waiting.popleft(), error)

    def _begin(self, job: Job) -> None:
        job.started = time.perf_counter()
        assert job.request.beam is not None
        count = job.request.beam.width + len(job.tokenizer.eos_ids)
        each = _Running(job, count, self.costs.setdefault(job, Cost()))
        self.running.append(each)
        self._advance(each, self._first)

    def _first(self, each: _Running) -> list[Ask]:
        """Open the loop. A line is one block, whatever its length: the server keeps the keys and values."""
        job = each.job
        root = Line(job.prompt, BlockTable(self.pool, self._context + 1), job.grammar.matcher() if job.grammar else None)
        job.sequences.append(root)
        each.loop = job.loop(job, root)
        return next(each.loop)

    def _end_cancelled(self) -> None:
        for job in [job for job in self.waiting if job.cancelled]:
            self.waiting.remove(job)
            self._refuse(job, _cancelled(job))
        for each in [each for each in self.running if each.job.cancelled]:
            self._end(each, _cancelled(each.job))

    def _round(self, group: list[_Running]) -> None:
        """One step of a group. What a server refuses, or answers wrongly, is found by asking for every job alone; a fleet that is
        gone ends all."""
        try:
            answers = self._ask(group)
        except Exception as error:  # whatever a reply brings about, the lane goes on
            alone = len(group) > 1 and not _is_gone(error)
            for each in group:
                self._round([each]) if alone else self._end(each, error)
        else:
            for each in group:
                each.job.books.passes += 1
                self._advance(each, lambda each: _sent(each, answers[each]))

    def _ask(self, group: list[_Running]) -> dict[_Running, list[torch.Tensor]]:
        """Rows of every ask of every job of the group."""
        self._warm([each for each in group if any(not ask.sequence.table.length for ask in each.asks)])
        flat = [(each, ask) for each in group for ask in each.asks]
        questions = [rows.question(ask.sequence, ask.rows - 1, each.count, self._vocab_size) for each, ask in flat]
        found = self._post([each for each, _ in flat], questions)
        short = [i for i, (each, _) in enumerate(flat) if rows.lacks(questions[i], found[i], each.count)]
        if short:
            again = self._post([flat[i][0] for i in short], [rows.whole(questions[i]) for i in short])
            for i, whole in zip(short, again, strict=True):
                flat[i][0].cost.lacked += 1
                found[i] = found[i]._replace(next=found[i].next | whole.next)
        answers: dict[_Running, list[torch.Tensor]] = {each: [] for each in group}
        for (each, ask), question, answer in zip(flat, questions, found, strict=True):
            ask.sequence.table.append(ask.sequence.pending)
            answers[each].append(rows.rows(question, answer, self._vocab_size))
        return answers

    def _post(self, owners: list[_Running], questions: list[rows.Question]) -> list[rows.Answer]:
        """One request (or as many as the server's queue demands, or one a line); its costs go to the owners of its lines."""
        if self._alone is None:
            found = []
            for part in rows.parts([each.pairs for each in questions], self._at_once):
                reply, requests = self._send(rows.body(questions[part]), len(questions[part]))
                found += batch(reply, len(questions[part]))
                for each in dict.fromkeys(owners[part]):
                    each.cost.requests += requests
        else:
            began = time.perf_counter()
            replies = list(self._alone.map(lambda question: self._fleet.post(rows.single(question), lines=1), questions))
            self._waited += time.perf_counter() - began
            found = [checked(reply) for reply, _ in replies]
            for each, (_, requests) in zip(owners, replies, strict=True):
                each.cost.requests += requests
        for each, question, one in zip(owners, questions, found, strict=True):
            cached = costs(one, len(question.ids))
            each.cost.sent += len(question.ids)
            each.cost.cached += cached
            if each.cost.first_cached is None:
                each.cost.first_cached = cached
        return [rows.read(one, question, self._vocab_size) for one, question in zip(found, questions, strict=True)]

    def _warm(self, fresh: list[_Running]) -> None:
        """Compute the beginnings that several new prompts share, one line each, in one request."""
        groups: dict[tuple[int, ...], list[_Running]] = {}
        for each in fresh:
            if len(each.job.prompt) > SHARED:
                groups.setdefault(tuple(each.job.prompt[:SHARED]), []).append(each)
        cold = {key: found for key, found in groups.items() if len(found) > 1 and key not in self._begun}
        for key in groups:
            self._begun[key] = None
            self._begun.move_to_end(key)
            if len(self._begun) > _REMEMBERED:
                self._begun.popitem(last=False)
        if not cold:
            return
        shared = [_common([each.job.prompt for each in found]) for found in cold.values()]
        owners = [found[0] for found in cold.values()]
        for part in rows.parts([0] * len(shared), self._at_once):
            body: dict[str, Json] = {"input_ids": shared[part], "sampling_params": rows.WARM}
            reply, requests = self._send(body, len(shared[part]))
            for each, ids, one in zip(owners[part], shared[part], batch(reply, len(shared[part])), strict=True):
                each.cost.requests += requests
                each.cost.sent += len(ids)
                each.cost.cached += costs(one, len(ids))

    def _send(self, body: dict[str, Json], lines: int) -> tuple[Json, int]:
        began = time.perf_counter()
        try:
            return self._fleet.post(body, lines=lines, prefer=self._prefer)
        finally:
            self._waited += time.perf_counter() - began

    def _advance(self, each: _Running, how: Callable[[_Running], list[Ask]]) -> None:
        """Take a loop's next asks; a loop that ends or fails, in whatever way, frees all of its lines."""
        try:
            with torch.inference_mode():
                each.asks = how(each)
            each.job.flush()
        except StopIteration:
            self._end(each, None)
        except BaseException as error:  # also SystemExit from a validator and panics of native code: the engine goes on
            self._end(each, error)

    def _end(self, each: _Running, error: BaseException | None) -> None:
        if each.loop is not None:
            each.loop.close()
        self.running.remove(each)
        each.job.drop_all()
        if error is None:
            self.costs.pop(each.job, None)
            each.job.flush()
        else:
            self._refuse(each.job, error)

    def _refuse(self, job: Job, error: BaseException) -> None:
        self.costs.pop(job, None)
        job.fail(error)


def _is_gone(error: Exception) -> bool:
    """Whether an error is about the servers, not about a line that one of them was asked about."""
    if isinstance(error, FailedRequestError):
        return error.repeat  # it was repeated, to no avail
    return isinstance(error, EngineError)


def _sent(each: _Running, answers: list[torch.Tensor]) -> list[Ask]:
    assert each.loop is not None
    return each.loop.send(answers)


def _common(prompts: Sequence[Sequence[int]]) -> list[int]:
    """The longest beginning of all prompts."""
    return [column[0] for column in takewhile(lambda column: len(set(column)) == 1, zip(*prompts, strict=False))]


def _cancelled(job: Job) -> CancelledError:
    return CancelledError(f"request {job.id!r} was cancelled")
