"""Plain loop: greedy decoding and sampling, n samples over one prompt, with or without a grammar.

Tokens that the grammar forces are appended without a pass of their own: the next pass computes them together.
Everything that ends a text (end token, stop ids, stop strings, limits) acts token by token, also inside a forced run.
Knows nothing about: other requests, block tables.
"""

from __future__ import annotations

import math
import random as stdlib_random
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from toolkit.contracts import Completion, Delta, Done, FinishReason, SamplingParams, TokenLogprob
from toolkit.engine.job import Ask, Job, Loop
from toolkit.engine.sequence import Sequence
from toolkit.errors import CancelledError, EngineError
from toolkit.grammar.mask import allocate, unpack
from toolkit.sample.draw import draw, generator
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
    """One sample in the making: `take` consumes logits of its last rows and appends one drawn token and what it forces."""

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
        self.done = False  # later than `reason` where forced tokens still want their log-probabilities
        self._stream = TextStream(job.tokenizer, self.params.stop)
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

    def take(self, rows: Tensor) -> None:
        """rows [1 + forced, V]: log-probabilities of the forced tokens, then the logits of the next token."""
        for forced, row in zip(self._unscored, rows, strict=False):
            self.logprobs.append(self._logprob(row, forced))
        self._unscored = []
        if self._ended():
            self._finish()
            return
        token = self._draw(rows[-1])
        if token is None:
            self.reason = "grammar"
            self._finish()
            return
        self.job.note_token()
        if self._scores:
            self.logprobs.append(self._logprob(rows[-1], token))
        text = self._commit(token)
        for forced in self._forced():
            text += self._commit(forced)
            self.job.books.forced_tokens += 1
            if self._scores:
                self._unscored.append(forced)
            if self._ended():
                break
        if self._ended() and not self._unscored:
            self._finish(text)
        else:
            self._tell(text)

    def cancel(self) -> None:
        """End here, with what there is."""
        self.reason = "cancelled"
        self._finish()

    def _draw(self, row: Tensor) -> int | None:
        """The next token; None where the grammar and the bans together leave nothing."""
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
            if not bool(allowed.any()):
                return None
        token = draw(row, params, self._random)
        if not math.isfinite(row[token]):
            raise EngineError(
                f"the model's logits are not finite (token {token}: {float(row[token])})", hint="check its weights and dtype"
            )
        return token

    def _commit(self, token: int) -> str:
        """Append one token and see what it ends; returns the text that became safe to show."""
        self.ids.append(token)
        if token in self._ends:
            self.reason, self.matched = "stop", token
            return ""
        self.sequence.follow([token])
        text = self._stream.feed(token)
        if self._stream.matched is not None:
            self.reason, self.matched = "stop", self._stream.matched
        elif self.sequence.matcher is not None and self.sequence.matcher.is_stopped:
            self.reason = "grammar"
        elif len(self.ids) >= self.job.max_tokens:
            self.reason = "length"
        return text

    def _forced(self) -> Iterator[int]:
        if self.reason is None and self.sequence.matcher is not None:
            yield from self.sequence.matcher.forced()

    def _tell(self, text: str) -> None:
        if text:
            self.job.tell(Delta(self.job.id, self.index, text, tuple(self.ids[self._told :])))
            self._told = len(self.ids)

    def _finish(self, text: str = "") -> None:
        assert self.reason is not None
        self.done = True
        self._tell(text + self._stream.flush())
        completion = Completion(
            text=self._stream.text,
            token_ids=tuple(self.ids),
            finish_reason=self.reason,
            matched_stop=self.matched,
            logprobs=tuple(self.logprobs),
            seed=self.seed if self.params.temperature > 0 else None,
            usage=self.job.usage(len(self.ids)),
            timing=self.job.timing(len(self.ids)),
        )
        self.job.tell(Done(self.job.id, self.index, completion))

    def _logprob(self, row: Tensor, token: int) -> TokenLogprob:
        scores = torch.log_softmax(row.float(), dim=-1)
        values, ids = scores.topk(min(self.params.logprobs or 0, len(scores)))
        asked = tuple((i, float(scores[i])) for i in self.params.logprob_ids)
        return TokenLogprob(token, float(scores[token]), tuple(zip(ids.tolist(), values.tolist(), strict=True)), asked)
