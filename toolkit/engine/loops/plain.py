"""Plain loop: greedy decoding and sampling without speculation, n samples over one prompt, with or without a grammar.

Tokens that the grammar forces are appended without a pass of their own: the next pass computes them together.
Everything that ends a text (end token, stop ids, stop strings, limits) acts token by token, also inside a forced run.
Knows nothing about: other requests, block tables.
"""

from __future__ import annotations

import math
import random as stdlib_random
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from toolkit.contracts import (
    Audit,
    Completion,
    Delta,
    Done,
    FinishReason,
    Incident,
    PassTrace,
    SamplingParams,
    TokenLogprob,
)
from toolkit.draft.tree import EMPTY, DraftTree
from toolkit.engine.job import Ask, Job, Loop
from toolkit.engine.loops.walk import Walk
from toolkit.engine.sequence import Sequence
from toolkit.engine.watch import raw_bytes
from toolkit.errors import CancelledError, EngineError
from toolkit.grammar.mask import allocate, unpack
from toolkit.sample.accept import choose
from toolkit.sample.draw import generator
from toolkit.sample.filters import adjust, ban
from toolkit.text.stream import TextStream


def plain(job: Job, root: Sequence) -> Loop:
    """Decode `job.request.sampling.n` samples; each ends in a Done event of its own."""
    params = job.request.sampling
    seed = params.seed if params.seed is not None else stdlib_random.SystemRandom().randrange(2**31)
    live = [Sample(job, root, index, seed) for index in range(params.n)]
    try:
        (logits,) = yield [Ask(root)]
        for sample in live[1:]:
            sample.sequence = job.fork(root)
        answers = [logits] * len(live)
        while True:
            for sample, rows in zip(live, answers, strict=True):
                sample.take(rows)
                if sample.done and params.n > 1:
                    job.drop(sample.sequence)
            live = [sample for sample in live if not sample.done]
            if not live:
                return
            answers = yield [Ask(sample.sequence, sample.rows_wanted) for sample in live]
    except CancelledError:
        for sample in live:
            sample.cancel()


class Sample:
    """One sample in the making: `take` consumes the logits of a pass and appends what it draws and what that forces."""

    def __init__(self, job: Job, sequence: Sequence, index: int, seed: int) -> None:
        self.job = job
        self.sequence = sequence
        self.index = index
        self.seed = seed
        self.params: SamplingParams = job.request.sampling
        self.ids: list[int] = []  # every generated token, an end token included
        self.logprobs: list[TokenLogprob] = []
        self.reason: FinishReason | None = None
        self.matched: str | int | None = None
        self.notes: list[str] = []
        self.trace: list[PassTrace] = []
        self.counted = 0  # tokens that the books have
        self.incidents: list[Incident] = []
        self.audit: Audit | None = None
        self.is_silent = False  # what was told is not the text that there is: nothing more is told before the end
        self.done = False  # later than `reason` where forced tokens still want their log-probabilities
        self._stream = TextStream(job.tokenizer, self.params.stop)
        self._texts: list[str] = []  # what every token made safe to show
        self._rest = ""  # what the end of the text set free
        self._result: Completion | None = None
        self._random = generator(seed, index)
        self._told = 0  # tokens that events have reported
        self._unscored: list[int] = []  # forced tokens whose log-probabilities come with the next pass
        self._scores = self.params.logprobs is not None or bool(self.params.logprob_ids)
        self._ends = frozenset(self.params.stop_ids + (() if self.params.ignore_eos else job.tokenizer.eos_ids))

    @property
    def rows_wanted(self) -> int:
        return min(1 + len(self._unscored), self.sequence.pending)  # a stop id is not part of the sequence

    def _ended(self) -> bool:
        return self.reason is not None

    @property
    def room(self) -> int:
        """Tokens that may still come."""
        return self.job.max_tokens - len(self.ids)

    def take(self, rows: Tensor, tree: DraftTree = EMPTY) -> Walk:
        """`walk`, then tell of it."""
        walk = self.walk(rows, tree)
        self.report()
        return walk

    def walk(self, rows: Tensor, tree: DraftTree = EMPTY) -> Walk:
        """rows [1 + forced + N, V]: log-probabilities of the forced tokens, the logits of the next token, those of the nodes.

        Walks down the tree as far as drawn tokens are in it, one token at a time, so that whatever a token changes or ends -
        penalties, grammar, stops, limits - has changed or ended before the next one is drawn.
        """
        if self._unscored:
            for forced, row in zip(self._unscored, rows, strict=False):
                self.logprobs.append(self._logprob(row, forced))
            self._unscored = []
        walk = Walk(tree, rows)
        if not self._ended():
            self._go(walk)
        return walk

    @property
    def is_over(self) -> bool:
        """Ended, and nothing wants its log-probability."""
        return self._ended() and not self._unscored

    def report(self) -> None:
        """Tell what is new."""
        if self.is_over:
            self._finish()
        else:
            self._tell()

    def _go(self, walk: Walk) -> None:
        before = len(self.ids)
        while not self._ended() and (row := walk.row) is not None:
            self._step(walk, row)
        emitted = self.ids[before:]
        self._count(walk, len(emitted))
        if self.job.request.trace:
            self.trace.append(PassTrace(walk.tree.tokens, walk.tree.parent, tuple(walk.taken), tuple(emitted)))

    def _count(self, walk: Walk, emitted: int) -> None:
        self.counted += emitted
        self.job.books.count_step(walk.tree, len(walk.taken), emitted)

    def _step(self, walk: Walk, logits: Tensor) -> None:
        """Draw one token from the logits of the walk's place and append it with what it forces."""
        row = self._ready(logits)
        if row is None:
            self.reason = "grammar"
            return
        token, child = self._choose(row, walk)
        if not math.isfinite(row[token]):
            raise EngineError(
                f"the model's logits are not finite (token {token}: {float(row[token])})", hint="check its weights and dtype"
            )
        self.job.note_token()
        if self._scores:
            self.logprobs.append(self._logprob(logits, token))
        self._append(token, child, walk)
        for forced in self._forced():
            if self._scores and (here := walk.row) is not None:
                self.logprobs.append(self._logprob(here, forced))
            elif self._scores:
                self._unscored.append(forced)
            self.job.books.forced_tokens += 1
            self._append(forced, walk.child(forced), walk)
            if self._ended():
                break

    def _choose(self, row: Tensor, walk: Walk) -> tuple[int, int | None]:
        return choose(row, self.params, self._random, walk.tokens, walk.q)

    def _append(self, token: int, child: int | None, walk: Walk) -> None:
        before = len(self.sequence.tokens)
        self._commit(token)
        walk.go(child, appended=len(self.sequence.tokens) > before)

    def cancel(self) -> None:
        """End here, with what there is."""
        self.reason, self._result = "cancelled", None
        self._finish()

    def _ready(self, row: Tensor) -> Tensor | None:
        """Logits that the next token is drawn from; None where the grammar and the bans together leave nothing."""
        params = self.params
        row = adjust(row, params, self.job.prompt, self.ids)
        if len(self.ids) < params.min_tokens:
            row = ban(row, self._ends)
        if self.sequence.matcher is not None:
            if params.ignore_eos:
                row = ban(row, self.job.tokenizer.eos_ids)
            mask = allocate(1, row.shape[-1])
            self.sequence.matcher.fill(mask, 0)
            allowed = torch.from_numpy(np.ascontiguousarray(unpack(mask, row.shape[-1])[0])).to(row.device)
            row = row.masked_fill(~allowed, -torch.inf)
            if not bool((row != -torch.inf).any()):
                return None
        return row

    def _commit(self, token: int) -> None:
        """Append one token and see what it ends."""
        self.ids.append(token)
        if token in self._ends:
            self.reason, self.matched = "stop", token
            self._texts.append("")
            return
        self.sequence.follow([token])
        self._texts.append(self._stream.feed(token))
        if self._stream.matched is not None:
            self.reason, self.matched = "stop", self._stream.matched
        elif self.sequence.matcher is not None and self.sequence.matcher.is_stopped:
            self.reason = "grammar"
        elif len(self.ids) >= self.job.max_tokens:
            self.reason = "length"

    def _forced(self) -> Iterator[int]:
        if self.reason is None and self.sequence.matcher is not None:
            yield from self.sequence.matcher.forced()

    def _tell(self, rest: str = "") -> None:
        """One event with the tokens that are new; where log-probabilities are wanted, with those that have theirs.

        `rest` is text that was held back until the end: it comes with the last token, or alone.
        """
        if self.is_silent:
            return
        start, end = self._told, len(self.ids) if self.done or not self._scores else len(self.logprobs)
        texts = self._texts[start:end]
        if texts:
            texts[-1] += rest
        if texts or rest:
            self.job.tell(
                Delta(
                    self.job.id,
                    self.index,
                    "".join(texts) or rest,
                    tuple(self.ids[start:end]),
                    texts=tuple(texts),
                    logprobs=tuple(self.logprobs[start:end]),
                    usage=self.job.usage(end),
                )
            )
        self._told = end

    def _finish(self) -> None:
        self.done = True
        result = self.result()
        self._tell(self._rest)
        self.job.tell(Done(self.job.id, self.index, result))

    def result(self) -> Completion:
        """What there is, judged; the text ends here."""
        if self._result is None:
            self._result = self._judged()
        return self._result

    def _judged(self) -> Completion:
        assert self.reason is not None
        self._rest += self._stream.flush()
        began = time.thread_time()
        text = self._stream.text
        report = self.job.checks.report(text, raw_bytes(self.ids, self.job.tokenizer), self.reason) if self.job.checks else None
        self.job.books.guard_s += time.thread_time() - began
        return Completion(
            text=text,
            token_ids=tuple(self.ids),
            finish_reason=self.reason,
            matched_stop=self.matched,
            logprobs=tuple(self.logprobs),
            seed=self.seed if self.params.temperature > 0 else None,
            notes=(*self.job.notes, *self.notes),
            trace=tuple(self.trace),
            usage=self.job.usage(len(self.ids)),
            timing=self.job.timing(len(self.ids)),
            incidents=tuple(self.incidents),
            audit=self.audit,
            value=report.value if report is not None else None,
            valid=report.valid if report is not None else None,
            violations=report.violations if report is not None else (),
        )

    def _logprob(self, row: Tensor, token: int) -> TokenLogprob:
        scores = torch.log_softmax(row.float(), dim=-1)
        values, ids = scores.topk(min(self.params.logprobs or 0, len(scores)))
        asked = tuple((i, float(scores[i])) for i in self.params.logprob_ids)
        return TokenLogprob(token, float(scores[token]), tuple(zip(ids.tolist(), values.tolist(), strict=True)), asked)
