"""Scheduler: which jobs run, and which of their pending tokens go into the next pass.

    waiting --(blocks for the worst case are there)--> running --(loop ends)--> done

Admission reserves the most blocks a job can ever need, so a running job never waits for memory and nothing is preempted.
One pass holds the decode rows of all jobs, then whole short prompts, then a piece of one long one; while prompts wait, a
quarter of the rows is theirs. A prompt that begins like one that is being computed waits for it, and then finds its
beginning in the prefix cache: what records share is computed once.
Knows nothing about: what loops do with logits, the caller's threads.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from toolkit.draft.tree import EMPTY
from toolkit.engine.forward import Feed, Forward
from toolkit.engine.job import Ask, Job, Loop
from toolkit.engine.pass_costs import PassCosts
from toolkit.errors import CancelledError, ToolkitError
from toolkit.kv.view import WIDE


@dataclass(slots=True, eq=False)
class _Running:
    job: Job
    loop: Loop | None = None  # None until its first step
    asks: list[Ask] = field(default_factory=list)
    answers: list[list[Tensor]] = field(default_factory=list)  # per ask, what its pieces gave so far

    def ready(self) -> bool:
        return all(ask.sequence.pending == 0 for ask in self.asks)


@dataclass(frozen=True, slots=True)
class _Piece:
    """One feed and whose it is: the `place`-th ask of a running job."""

    feed: Feed
    owner: _Running
    place: int


class Scheduler:
    """Runs jobs to their end, one `step` (one pass) at a time. Not thread-safe: the engine's worker owns it."""

    def __init__(self, forward: Forward, *, batch_rows: int, costs: PassCosts | None = None) -> None:
        """`costs` learns what passes without prompts take."""
        self.forward = forward
        self.batch_rows = batch_rows
        self._costs = costs
        self.waiting: deque[Job] = deque()
        self.running: list[_Running] = []
        # told together, after the step: a caller that is woken in between takes the interpreter from the rest of it
        self._telling: deque[Job] = deque()
        self.blocks_held = 0  # by requests, when the last one ended; what only the prefix cache keeps is not counted

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    @property
    def reserved(self) -> int:
        return sum(each.job.reserve for each in self.running)

    def add(self, job: Job) -> None:
        self.waiting.append(job)

    def step(self) -> None:
        """End what was cancelled, admit what fits, run one pass, let every loop whose asks are answered go on, tell of all."""
        try:
            self._end_cancelled()
            while self.waiting and self.reserved + self.waiting[0].reserve <= self.forward.pool.size:
                self._begin(self.waiting.popleft())
            pieces = self._compose()
            if pieces:
                self._pass(pieces)
            for each in [each for each in self.running if each.ready()]:
                self._advance(each, self._answer)
        finally:
            while self._telling:
                self._telling.popleft().flush()
        self.forward.save_prefixes()  # after the first tokens were told
        self.running = self.running[1:] + self.running[:1]  # where a pass is too small for all, each is first in turn

    def fail_all(self, error: ToolkitError) -> None:
        """Tell every job, running or waiting, that the engine is gone."""
        for each in list(self.running):
            self._end(each, error)
        while self.waiting:
            self.waiting.popleft().fail(error)

    def _begin(self, job: Job) -> None:
        job.started = time.perf_counter()
        self.running.append(_Running(job))
        self._advance(self.running[-1], self._first)

    def _end_cancelled(self) -> None:
        for job in [job for job in self.waiting if job.cancelled]:
            self.waiting.remove(job)
            self._begin(job)
        for each in [each for each in self.running if each.job.cancelled]:
            self._advance(each, _cancel)

    def _compose(self) -> list[_Piece]:
        """The next pass; see the module for who goes first."""
        pieces: list[_Piece] = []
        prompts: list[_Piece] = []
        for each in self.running:
            for place, ask in enumerate(each.asks):
                pending, computed = ask.sequence.pending, ask.sequence.computed
                if pending:
                    is_row = computed and pending <= WIDE
                    (pieces if is_row else prompts).append(_Piece(_feed(ask, pending), each, place))
        pieces = _fitting(pieces, self.batch_rows - (self.batch_rows // 4 if prompts else 0))
        room = self.batch_rows - sum(piece.feed.size for piece in pieces)
        return pieces + self._prompts(prompts, room)

    def _prompts(self, prompts: list[_Piece], room: int) -> list[_Piece]:
        """Whole short prompts into half of the room, then a piece of one long prompt: the one already begun, if any."""
        chosen: list[_Piece] = []
        beginnings: set[tuple[int, ...]] = set()
        prompts.sort(key=lambda piece: (not piece.feed.sequence.table.length, piece.owner.job.submitted))
        half = room // 2
        long: _Piece | None = None
        for piece in prompts:
            sequence = piece.feed.sequence
            beginning = tuple(sequence.tokens[: self.forward.block_size])
            if not sequence.table.length and self.forward.prefix_enabled and beginning in beginnings:
                continue
            if not sequence.table.length:
                piece.owner.job.books.cached_tokens += self.forward.find_prefix(sequence)
                piece.owner.job.books.restored_tokens += sequence.restored
                piece = _Piece(_feed(piece.owner.asks[piece.place], sequence.pending), piece.owner, piece.place)
            beginnings.add(beginning)
            if piece.feed.count <= half:
                half -= piece.feed.count
                room -= piece.feed.count
                chosen.append(piece)
            else:
                long = long or piece
        if long is not None and room:
            ask = long.owner.asks[long.place]
            chosen.append(_Piece(_feed(ask, min(room, ask.sequence.pending)), long.owner, long.place))
        return chosen

    def _pass(self, pieces: Sequence[_Piece]) -> None:
        """One forward pass. If it fails, the jobs are run one by one, and only the one that fails alone ends in an error."""
        owners = list(dict.fromkeys(piece.owner for piece in pieces))
        began = time.perf_counter()
        is_decode = all(piece.feed.sequence.computed for piece in pieces)
        try:
            results = self.forward([piece.feed for piece in pieces])
        except Exception as error:
            if len(owners) == 1:
                self._end(owners[0], error)
            for owner in owners if len(owners) > 1 else ():
                self._pass([piece for piece in pieces if piece.owner is owner])
            return
        if self._costs is not None and not is_decode:
            self._costs.clock += 1
        elif self._costs is not None:
            seconds, feeds = time.perf_counter() - began, [piece.feed for piece in pieces]
            lengths, sizes = [feed.sequence.table.length for feed in feeds], [feed.size for feed in feeds]
            seen = sum(length * size for length, size in zip(lengths, sizes, strict=True))
            drafted = sum(len(feed.tree) for feed in feeds)
            self._costs.learn(sum(sizes), seconds, drafted=drafted, listed=sum(lengths), seen=seen)
        for piece, logits in zip(pieces, results, strict=True):
            parts = piece.owner.answers[piece.place]
            parts.append(_scored(piece.owner.asks[piece.place], logits, parts))
            piece.owner.job.books.rows += piece.feed.size
        for owner in owners:
            owner.job.books.passes += 1
            owner.job.count_blocks()

    def _advance(self, each: _Running, how: Callable[[_Running], list[Ask]]) -> None:
        """Take a loop's next asks; a loop that ends or fails, in whatever way, frees all of its blocks."""
        try:
            each.asks = how(each)
            each.answers = [[] for _ in each.asks]
            if each.job.is_tainted:
                self.forward.forget_prefixes()
            self._telling.append(each.job)
        except StopIteration:
            self._end(each, None)
        except BaseException as error:  # also SystemExit from a validator and panics of native code: the engine goes on
            self._end(each, error)

    def _first(self, each: _Running) -> list[Ask]:
        each.loop = each.job.start(self.forward.table(), self.forward.store.move)
        return next(each.loop)

    def _answer(self, each: _Running) -> list[Ask]:
        """Send the answers; prompts that have just been computed are remembered, so that the next record finds them."""
        assert each.loop is not None
        for ask in each.asks:
            if ask.sequence.max_rollback == 0:
                self.forward.keep_prefix(ask.sequence)
        return each.loop.send([torch.cat(parts) if len(parts) > 1 else parts[0] for parts in each.answers])

    def _end(self, each: _Running, error: BaseException | None) -> None:
        if each.loop is not None:
            each.loop.close()
        self.running.remove(each)
        if each.job.is_tainted:
            self.forward.forget_prefixes()
        elif error is None and each.job.request.beam is None:
            for sequence in each.job.sequences:  # a next turn of the conversation starts from here
                self.forward.keep_prefix(sequence)
        each.job.drop_all()
        self.blocks_held = self.forward.pool.in_use - self.forward.prefix.evictable
        if error is None:
            self._telling.append(each.job)
        else:
            each.job.fail(error)


def _cancel(each: _Running) -> list[Ask]:
    assert each.loop is not None
    return each.loop.throw(CancelledError(f"request {each.job.id!r} was cancelled"))


def _feed(ask: Ask, count: int) -> Feed:
    """The next `count` pending tokens of an ask, with those of its wanted rows that are among them."""
    after = ask.sequence.pending - count
    return Feed(ask.sequence, count, min(count, max(0, ask.rows - after)), EMPTY if after else ask.tree, ask.hidden)


def _fitting(pieces: list[_Piece], room: int) -> list[_Piece]:
    """The leading pieces that fit, the first one always."""
    taken = 0
    for i, piece in enumerate(pieces):
        taken += piece.feed.size
        if taken > room and i:
            return pieces[:i]
    return pieces


def _scored(ask: Ask, logits: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """Logits as they are, or the log-probabilities of the ask's targets: `parts` of its rows were answered already."""
    if not ask.targets:
        return logits
    before = sum(map(len, parts))
    targets = torch.tensor(ask.targets[before : before + len(logits)], dtype=torch.long, device=logits.device)
    logits = logits.float()
    return logits.gather(1, targets[:, None])[:, 0] - torch.logsumexp(logits, dim=-1)
