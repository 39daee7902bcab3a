"""Texts: requests that the server samples by itself - one stream a request, all of its samples in it.

In: a job (request, prompt ids).   Out: deltas as they come, one Completion a sample.
The text is made here out of token ids, by the same code as in the embedded engine: stop strings, whole characters and held-back
text are the same for every way in which a server cuts its stream. Log-probabilities are asked for afterwards, as those of
input tokens: raw, whatever the sampling did; so they stand in the result, not in the deltas. With a grammar the validator has the last word.
Knows nothing about: threads, other requests, which server answers.
Invariants: a sample's ids only ever grow; a stream that ends before every sample has is an error; a request is repeated only
while nothing of it was told.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field

from toolkit.contracts import Completion, Delta, Done, Failed, FinishReason, Grammar, Json, TokenLogprob, Usage
from toolkit.engine.job import Job
from toolkit.engine.remote import rows
from toolkit.engine.remote.connection import FailedRequestError
from toolkit.engine.remote.fleet import Fleet
from toolkit.engine.remote.relax import MOST_TRIES, Constraint, relaxed
from toolkit.engine.remote.reply import bad, batch, checked, costs, count_of, output_ids, pairs, row, scores
from toolkit.engine.remote.sampling import sample_seed, server_params
from toolkit.engine.watch import judged
from toolkit.errors import CancelledError, EngineError, NoValidError, SchemaError, ToolkitError
from toolkit.text.stream import TextStream
from toolkit.validate.check import Validator


@dataclass(slots=True)
class Sample:
    """One sample in the making."""

    job: Job
    index: int
    stream: TextStream
    ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)  # what each of `ids` made safe to show
    told: int = 0
    reason: FinishReason | None = None
    matched: str | int | None = None
    meta: Mapping[str, Json] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.reason is not None

    def take(self, event: Mapping[str, Json]) -> None:
        """Commit the tokens that are new in one event of the server."""
        new = self._new_ids(event)
        self.meta = event["meta_info"]
        for token in new:
            if self.stream.matched is None:
                self._commit(token)
        finish = self.meta.get("finish_reason")
        if self.stream.matched is not None:
            self.reason, self.matched = "stop", self.stream.matched
        elif finish is not None:
            self.reason, self.matched = _ending(finish)

    def _new_ids(self, event: Mapping[str, Json]) -> list[int]:
        """Ids that are new: a server sends all of a sample's every time, or (incremental) the new ones."""
        given = output_ids(event, self.job.tokenizer.vocab_size)
        total = count_of(event["meta_info"], "completion_tokens", self.job.max_tokens)
        if len(given) == total and given[: len(self.ids)] == self.ids:
            return given[len(self.ids) :]
        if len(self.ids) + len(given) == total:
            return given
        raise bad(f"output_ids of {total} tokens after {len(self.ids)}", given[:8])

    def _commit(self, token: int) -> None:
        ends = self.job.request.sampling.stop_ids + self.job.tokenizer.eos_ids
        self.ids.append(token)
        self.texts.append("" if token in ends else self.stream.feed(token))


@dataclass(slots=True)
class Text:
    """One request for text: `run` tells its events."""

    job: Job
    fleet: Fleet
    asked: Constraint | None
    requests: int = 0
    sent: int = 0
    computed: int = 0

    def run(self) -> None:
        """Deltas and results go to the job's sink; errors are raised."""
        params = self.job.request.sampling
        self.job.started = time.perf_counter()
        samples = [Sample(self.job, index, TextStream(self.job.tokenizer, params.stop)) for index in range(params.n)]
        if params.n > 1:
            self._warm()
        with closing(self._events()) as events:
            for event in events:
                index = event.get("index", 0)
                if not isinstance(index, int) or not 0 <= index < params.n:
                    raise bad(f"the index of {params.n} samples", index)
                if not samples[index].ended:
                    self._tell(samples[index], event)
                if self.job.cancelled or all(sample.ended for sample in samples):
                    break
        for sample in [sample for sample in samples if not sample.ended]:
            if not self.job.cancelled:
                raise FailedRequestError("the server ended the stream before every sample had ended")
            sample.reason = "cancelled"
            self._finish(sample)

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
            self._spend(1, 0 if self.sent else len(self.job.prompt))
            try:
                for event in self.fleet.stream(self._body(), lines=self.job.request.sampling.n):
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
        self._spend(requests, len(self.job.prompt), costs(one, len(self.job.prompt)))

    def _spend(self, requests: int, sent: int, cached: int = 0) -> None:
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
        partial = self._checked(sample)
        job, count = self.job, len(sample.ids)
        done = Completion(
            text=sample.stream.text,
            token_ids=tuple(sample.ids),
            finish_reason=sample.reason or "stop",
            matched_stop=sample.matched,
            logprobs=self._logprobs(sample),
            seed=job.request.sampling.seed if job.request.sampling.temperature > 0 else None,
            usage=self._usage(sample),
            timing=job.timing(count),
            partial=partial,
        )
        job.tell(Done(job.id, sample.index, judged(job.checks, done, job.tokenizer)))
        job.flush()

    def _checked(self, sample: Sample) -> tuple[str, ...]:
        """What the validator decided alone; NoValidError where it refuses a text that the server says is complete."""
        grammar: Grammar | None = self.job.request.grammar
        if grammar is None or self.asked is None:
            return ()
        complete = sample.reason == "stop" and not isinstance(sample.matched, str)
        report = Validator(grammar).check(sample.stream.text) if complete else None
        if report is not None and not report.valid:
            reasons = tuple(f"{each.path or '(root)'}: {each.message}" for each in report.violations)
            lost = f"; the server was not told of {', '.join(self.asked.lost)}" if self.asked.lost else ""
            raise NoValidError(
                f"the server's text is not valid: {'; '.join(reasons)}{lost}", reasons=reasons, texts=(sample.stream.text,),
                hint="a beam search has its masks on this side and chooses among valid texts",
            )  # fmt: skip
        return self.asked.lost

    def _usage(self, sample: Sample) -> Usage:
        prompt, meta = self.job.prompt, sample.meta
        cached = costs({"meta_info": meta}, len(prompt)) if meta else 0
        proposed, accepted, passes = (
            _known(meta, f"spec_{name}") for name in ("num_proposed_drafts", "num_correct_drafts", "verify_ct")
        )
        return Usage(
            input_tokens=len(prompt), cached_tokens=cached, output_tokens=len(sample.ids),
            passes=passes or len(sample.ids), verify_passes=passes, proposed=proposed, accepted=accepted,
            rows=self.computed - cached + max(len(sample.ids) - 1, 0), requests=self.requests, tokens_sent=self.sent,
        )  # fmt: skip

    def _logprobs(self, sample: Sample) -> tuple[TokenLogprob, ...]:
        """Raw log-probabilities of the sample's tokens, asked for as those of input tokens."""
        params, prompt = self.job.request.sampling, self.job.prompt
        if (params.logprobs is None and not params.logprob_ids) or not sample.ids:
            return ()
        top, named = params.logprobs or 0, list(params.logprob_ids)
        body = {
            "input_ids": [*prompt, *sample.ids], "sampling_params": rows.WARM, "return_logprob": True,
            "logprob_start_len": len(prompt) - 1, "top_logprobs_num": top, **({"token_ids_logprob": named} if named else {}),
        }  # fmt: skip
        reply, requests = self.fleet.post(body, lines=1)
        one = checked(reply)
        self._spend(requests, len(prompt) + len(sample.ids), costs(one, len(prompt) + len(sample.ids)))
        meta = one["meta_info"]
        found = []
        for at, logprob in enumerate(scores(meta, [prompt[-1], *sample.ids]), 1):
            likeliest = pairs(row(meta, "input_top_logprobs", at), "input_top_logprobs", None) if top else {}
            asked = pairs(row(meta, "input_token_ids_logprobs", at), "input_token_ids_logprobs", named) if named else {}
            token = sample.ids[at - 1]
            found.append(TokenLogprob(token, logprob, tuple(likeliest.items()), tuple((i, asked[i]) for i in named)))
        return tuple(found)


def run_text(text: Text) -> None:
    """A thread's work: one request for text to its last event."""
    job = text.job
    try:
        if job.cancelled:
            raise CancelledError(f"request {job.id!r} was cancelled before it began")
        text.run()
    except ToolkitError as error:
        job.sink(Failed(job.id, error))
    except BaseException as error:  # also SystemExit from a validator and panics of native code: the engine goes on
        job.sink(Failed(job.id, EngineError(f"request {job.id!r} failed: {type(error).__name__}: {error}")))


def _known(meta: Mapping[str, Json], name: str) -> int:
    """A count that servers of some kinds report; 0 where it is absent."""
    value = meta.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _ending(finish: Json) -> tuple[FinishReason, str | int | None]:
    kind = finish.get("type") if isinstance(finish, dict) else None
    matched = finish.get("matched") if isinstance(finish, dict) else None
    if kind not in ("stop", "length"):
        raise bad("finish_reason", finish)
    if matched is not None and not isinstance(matched, int | str):
        raise bad("what a text stopped at", matched)
    return ("length", None) if kind == "length" else ("stop", matched)
