"""Texts: requests that the server samples by itself - one stream a request, all of its samples in it.

In: a job (request, prompt ids).   Out: deltas as they come, one Completion a sample.
Log-probabilities are asked for afterwards, as those of input tokens: raw, whatever the sampling did; so they stand in the result, not
in the deltas. With a grammar the validator has the last word.
Knows nothing about: threads, other requests, which server answers.
Invariants: a stream that ends before every sample has is an error; a request is repeated only while nothing of it was told.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest

from toolkit.contracts import Completion, Delta, Done, Grammar, Json, TokenLogprob, Usage
from toolkit.engine.job import Job
from toolkit.engine.remote import rows
from toolkit.engine.remote.connection import FailedRequestError
from toolkit.engine.remote.fleet import Fleet
from toolkit.engine.remote.overseer import Overseer
from toolkit.engine.remote.relax import MOST_TRIES, Constraint, relaxed
from toolkit.engine.remote.reply import bad, batch, checked, costs
from toolkit.engine.remote.samples import Sample
from toolkit.engine.remote.sampling import sample_seed, server_params
from toolkit.engine.remote.scoring import token_logprobs
from toolkit.engine.watch import judged
from toolkit.errors import NoValidError, SchemaError
from toolkit.text.stream import TextStream
from toolkit.validate.check import Validator


@dataclass(slots=True)
class Text:
    """One request for text: `run` tells its events."""

    job: Job
    fleet: Fleet
    asked: Constraint | None
    overseer: Overseer
    samples: list[Sample] = field(default_factory=list)
    requests: int = 0
    sent: int = 0
    computed: int = 0  # beside what was computed for the samples
    cached: int | None = None  # tokens of the prompt that the server knew before this request

    def run(self) -> None:
        """Deltas and results go to the job's sink; errors are raised."""
        params = self.job.request.sampling
        self.job.started = time.perf_counter()
        self.samples = [Sample(self.job, index, TextStream(self.job.tokenizer, params.stop)) for index in range(params.n)]
        if not self.job.cancelled:
            self._read()
        for sample in [sample for sample in self.samples if not sample.ended]:
            if not self.job.cancelled:
                raise FailedRequestError("the server ended the stream before every sample had ended")
            sample.reason = "cancelled"
            self._finish(sample)

    def _read(self) -> None:
        """The stream, until every sample has ended or nobody wants them any more."""
        samples = self.samples
        if len(samples) > 1:
            self._warm()
        with closing(self._events()) as events:
            for event in events:
                index = event.get("index", 0)
                if not isinstance(index, int) or not 0 <= index < len(samples):
                    raise bad(f"the index of {len(samples)} samples", index)
                if not samples[index].ended:
                    self._tell(samples[index], event)
                if self.job.cancelled or all(sample.ended for sample in samples):
                    break

    def _tell(self, sample: Sample, event: Mapping[str, Json]) -> None:
        sample.take(event)
        if sample.ids:
            self.job.note_token()
        if sample.ended:
            self._finish(sample)
        else:
            self._delta(sample)

    def _events(self) -> Generator[Mapping[str, Json], None, None]:
        """Checked events; a schema that the server refuses is asked for again without what it complains about."""
        for _ in range(MOST_TRIES):
            try:
                for event in self.fleet.stream(self._body(), lines=len(self.samples), sent=self._sent):
                    yield checked(event)
                return
            except SchemaError as error:
                if self.asked is None:
                    raise
                self.asked = relaxed(self.asked, error.message)
        raise SchemaError(f"the server refuses the schema after {MOST_TRIES} keywords were taken out")

    def _body(self) -> dict[str, Json]:
        """One set of parameters wherever that is enough: a router takes no list of them."""
        job, params = self.job, self.job.request.sampling
        seed = params.seed if params.temperature > 0 else None
        seeds = [sample_seed(seed, index) for index in range(params.n if seed is not None else 1)]
        asked = {} if self.asked is None else {self.asked.field: self.asked.text}
        every = [{**server_params(params, job.max_tokens, each), **asked} for each in seeds]
        return {
            "input_ids": [job.prompt] * params.n if params.n > 1 else job.prompt,
            "sampling_params": every if len(every) > 1 else every[0],
            "stream": True,
        }

    def _warm(self) -> None:
        """Compute the prompt once: samples that begin together would each compute it."""
        body = {"input_ids": [self.job.prompt], "sampling_params": rows.WARM}
        reply, requests = self.fleet.post(body, lines=1)
        (one,) = batch(reply, 1)
        self.cached = costs(one, len(self.job.prompt))
        self._spend(requests, len(self.job.prompt), self.cached)

    def _sent(self) -> None:
        """A stream was asked for; what is computed for it the samples know."""
        self.requests += 1
        self.sent += len(self.samples) * len(self.job.prompt)

    def _spend(self, requests: int, sent: int, cached: int) -> None:
        self.requests += requests
        self.sent += sent
        self.computed += sent - cached

    def _delta(self, sample: Sample, rest: str = "") -> None:
        """What is new, if anything is. `rest` was held back until the end: it comes with the last token, or alone."""
        ids, texts = tuple(sample.ids[sample.told :]), sample.texts[sample.told :]
        if texts:
            texts[-1] += rest
        if texts or rest:
            text = "".join(texts) or rest
            self.job.tell(Delta(self.job.id, sample.index, text, ids, texts=tuple(texts), usage=self._usage(sample)))
            sample.told = len(sample.ids)
            self.job.flush()

    def _finish(self, sample: Sample) -> None:
        self._delta(sample, sample.stream.flush())
        job, count, logprobs = self.job, len(sample.ids), self._logprobs(sample)
        before = self._usage(sample)
        done = Completion(
            text=sample.stream.text,
            token_ids=tuple(sample.ids),
            finish_reason=sample.reason or "stop",
            matched_stop=sample.matched,
            logprobs=logprobs,
            seed=job.request.sampling.seed if job.request.sampling.temperature > 0 else None,
            usage=before,
            timing=job.timing(count),
            partial=() if self.asked is None else self.asked.lost,
        )
        done = judged(job.checks, done, job.tokenizer)
        done = self.overseer.reviewed(job.request, sample.index, done, partial(self._scored, sample))
        done = replace(done, usage=_later(done.usage, before, self._usage(sample)))
        self._check(done)
        job.tell(Done(job.id, sample.index, done))
        job.flush()

    def _check(self, done: Completion) -> None:
        """NoValidError where the validator refuses a text that the server says is complete."""
        grammar: Grammar | None = self.job.request.grammar
        if grammar is None or self.asked is None:
            return
        complete = done.finish_reason == "stop" and not isinstance(done.matched_stop, str)
        report = Validator(grammar).check(done.text) if complete else None
        if report is not None and not report.valid:
            reasons = tuple(f"{each.path or '(root)'}: {each.message}" for each in report.violations)
            lost = f"; the server was not told of {', '.join(self.asked.lost)}" if self.asked.lost else ""
            raise NoValidError(
                f"the server's text is not valid: {'; '.join(reasons)}{lost}", reasons=reasons, texts=(done.text,),
                hint="a beam search has its masks on this side and chooses among valid texts",
            )  # fmt: skip

    def _usage(self, sample: Sample) -> Usage:
        """What all samples have cost so far; the output is that of the one."""
        prompt, samples = self.job.prompt, self.samples
        proposed, accepted, verified = (
            sum(each.count(f"spec_{name}") for each in samples)
            for name in ("num_proposed_drafts", "num_correct_drafts", "verify_ct")
        )
        places = [found for each in samples if (found := each.accepted_by_position) is not None]
        by_place = tuple(map(sum, zip_longest(*places, fillvalue=0)))
        depth = (
            max(len(by_place), -(-proposed // verified)) if verified and places else 0
        )  # how far each draft reached is not told
        known = len(prompt) - sample.computed if sample.meta else 0
        return Usage(
            input_tokens=len(prompt), cached_tokens=known if self.cached is None else self.cached, output_tokens=len(sample.ids),
            passes=max(each.passes for each in samples), verify_passes=verified, proposed=proposed, accepted=accepted,
            proposed_by_position=(verified,) * depth, accepted_by_position=by_place,
            rows=self.computed + sum(each.rows for each in samples), requests=self.requests, tokens_sent=self.sent,
        )  # fmt: skip

    def _logprobs(self, sample: Sample) -> tuple[TokenLogprob, ...]:
        """Raw log-probabilities of the sample's tokens, asked for as those of input tokens."""
        params = self.job.request.sampling
        if params.logprobs is None and not params.logprob_ids:
            return ()
        return self._scored(sample, params.logprobs or 0, params.logprob_ids)

    def _scored(self, sample: Sample, top: int, named: Sequence[int] = ()) -> tuple[TokenLogprob, ...]:
        size = self.job.tokenizer.vocab_size
        return token_logprobs(
            self.fleet, self.job.prompt, sample.ids, top=min(top, size), named=named, vocab_size=size, spend=self._spend
        )


def _later(usage: Usage, before: Usage, now: Usage) -> Usage:
    """With what an audit has cost between two looks at the books."""
    return replace(
        usage,
        requests=usage.requests + now.requests - before.requests,
        tokens_sent=usage.tokens_sent + now.tokens_sent - before.tokens_sent,
        rows=usage.rows + now.rows - before.rows,
    )


def run_text(text: Text) -> None:
    """A thread's work: one request for text to its last event."""
    job = text.job
    try:
        text.run()
    except BaseException as error:  # also SystemExit from a validator and panics of native code: the engine goes on
        job.fail(error)
