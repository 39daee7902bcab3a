"""Overseer: what an engine over servers holds against their speculation - audits, a breaker, a second engine without it.

    text of a server that speculates -> valid? chosen for an audit? -- fine --------------------------------> told as it is
                                                                    `- wrong: `fallback` writes it -> another text: that one stands
                                                                                                   -> the same: the model's own
                                                                              no fallback          -> told as invalid, "unclear"

The audit asks the same servers for the log-probabilities of the text, which a prefill computes: no draft has a part in it (keys and
values of the prompt may come from their cache). On hold, and where a request wants no speculation, texts go to the fallback.
Knows nothing about: how a server is asked, threads.
Invariants: a text that failed its audit and could not be replaced is not valid; what was streamed of a text that was replaced is said.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from toolkit.contracts import Audit, Completion, Done, Engine, Incident, Request, TokenLogprob, Violation, require
from toolkit.engine.audit import read_logprobs
from toolkit.engine.breaker import Breaker
from toolkit.engine.job import Job
from toolkit.engine.metrics import Metrics
from toolkit.engine.oversight import SILENT, Oversight
from toolkit.engine.remote.opened import Opened
from toolkit.engine.watch import AUDIT, is_cut
from toolkit.errors import EngineError, ToolkitError, UsageError
from toolkit.results import only_result

log = logging.getLogger(__name__)
LISTED = 64  # likeliest tokens that an audit of a drawn text asks for at every place
ELSEWHERE = "written by the fallback, without speculation"
Ask = Callable[[int], tuple[TokenLogprob, ...]]  # how many of the likeliest tokens -> log-probabilities of a text's tokens


class Overseer:
    """One an engine. `drafter` is what the servers call their speculation, "" where they have none."""

    def __init__(
        self, drafter: str, vocab_size: int, *, audit: float, breaker: Breaker | None, fallback: Engine | None
    ) -> None:
        ok = isinstance(audit, int | float) and not isinstance(audit, bool) and 0.0 <= audit <= 1.0
        require(ok, "audit", audit, "a share from 0 to 1")
        require(breaker is None or isinstance(breaker, Breaker), "breaker", breaker, "None or a Breaker")
        self.drafter, self.fallback, self._vocab_size = drafter, fallback, vocab_size
        self.oversight = Oversight(share=float(audit), breaker=breaker or Breaker())
        self.metrics = Metrics(self.breaker)

    @property
    def breaker(self) -> Breaker:
        return self.oversight.breaker

    def elsewhere(self, request: Request) -> Engine | None:
        """Who writes a text in place of the servers; EngineError where speculation is on hold and nobody else can."""
        if not self.drafter or request.beam is not None:
            return None
        if self.breaker.is_held and self.fallback is None:
            raise EngineError(
                f"speculation is on hold, and these servers cannot leave it out: {self.breaker.reason}",
                hint="a fallback, the URL of a server without speculation, writes them; after a check: breaker.reset(what was checked)",
            )
        return self.fallback if self.breaker.is_held or not request.speculate else None

    def relay(self, second: Engine, job: Job) -> None:
        """A thread's work: a request to its last event, run on a second engine."""
        name = f"{job.id}/{uuid.uuid4().hex}"
        try:
            for event in second.generate([replace(job.request, id=name, speculate=False)]):
                if job.cancelled:
                    second.cancel(name)
                if isinstance(event, Done) and isinstance(event.result, Completion):
                    event = replace(event, result=replace(event.result, notes=(*event.result.notes, ELSEWHERE)))
                job.sink(replace(event, request_id=job.id))
        except BaseException as error:  # as in run_text: the engine goes on
            job.fail(error)

    def reviewed(self, request: Request, index: int, done: Completion, ask: Ask) -> Completion:
        """The text that stands, with what is to be said of it; all of `done` has been streamed."""
        if not self.drafter or done.finish_reason == "cancelled":
            return done
        audit = self._audit(request, index, done, ask)
        read = len(done.token_ids) if audit is not None and audit.method != "none" else 0
        done = replace(done, audit=audit, usage=replace(done.usage, rechecked=done.usage.rechecked + read))
        failed = audit is not None and audit.verdict == "fail"
        if not failed and (done.valid is not False or is_cut(done)):
            self.breaker.count(False)
            return done
        worst = done.violations[-1] if done.violations else None
        why = audit.why if audit is not None and failed else f"{worst.keyword}: {worst.message}" if worst is not None else ""
        again = self._again(request)
        kind = self._kind(request, done, again, failed)
        self.breaker.count(kind == "speculation")
        position = _parts(done, again) if again is not None else len(done.token_ids)
        streamed = again is not None and kind != "model" and not again.text.startswith(done.text)
        incident = Incident(
            kind=kind, found_by="audit" if failed else "validator", drafter=self.drafter, position=position,
            offset=len(done.text.encode()), tokens=done.token_ids[position : position + 8], why=why, streamed=streamed,
        )  # fmt: skip
        log.info("%s incident in request %r, found by %s", kind, request.id, incident.found_by)
        return self._stands(done, again, incident, failed)

    def _audit(self, request: Request, index: int, done: Completion, ask: Ask) -> Audit | None:
        if not done.token_ids or not self.oversight.wants(request.id, index, done.seed or 0):
            return None
        params = request.sampling
        checkable = read_logprobs(request, replace(done, token_ids=(), logprobs=()), vocab_size=1).method != "none"
        logprobs = ask(max(LISTED, params.top_k) if params.temperature > 0 else 1) if checkable else ()
        return read_logprobs(request, replace(done, logprobs=logprobs), vocab_size=self._vocab_size)

    def _again(self, request: Request) -> Completion | None:
        """What the fallback writes; None where there is none, or it fails."""
        if self.fallback is None:
            return None
        plain = replace(request, id="", speculate=False, sampling=replace(request.sampling, n=1))
        try:
            found = only_result(self.fallback.generate([plain]))
        except ToolkitError as error:
            log.warning("the fallback failed: %s", error)
            return None
        return found if isinstance(found, Completion) else None

    def _kind(
        self, request: Request, done: Completion, again: Completion | None, failed: bool
    ) -> Literal["speculation", "model", "unclear"]:
        if failed:
            return "speculation"
        if again is None or request.sampling.temperature > 0:
            return "unclear"
        return "model" if again.text == done.text and again.finish_reason == done.finish_reason else "speculation"

    def _stands(self, done: Completion, again: Completion | None, incident: Incident, failed: bool) -> Completion:
        if again is not None and incident.kind != "model":
            notes = (*done.notes, *again.notes, *((SILENT,) if incident.streamed else ()))
            mine, its = done.usage, again.usage
            usage = replace(
                mine, output_tokens=len(again.token_ids), discarded=mine.discarded + len(done.token_ids), passes=mine.passes + its.passes,
                rows=mine.rows + its.rows, requests=mine.requests + its.requests, tokens_sent=mine.tokens_sent + its.tokens_sent,
            )  # fmt: skip
            return replace(
                again, notes=notes, incidents=(incident,), audit=done.audit, usage=usage, timing=done.timing, seed=done.seed
            )
        wrong = Violation("", AUDIT, "what the target writes", done.text[:200], incident.why)
        if failed:
            done = replace(done, valid=False, value=None, violations=(*done.violations, wrong))
        return replace(done, incidents=(incident,))


def _parts(done: Completion, again: Completion) -> int:
    """Index of the first token that differs."""
    pairs = zip(done.token_ids, again.token_ids, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(done.token_ids), len(again.token_ids)))


def overseer(opened: Opened, fallback: Engine | None, *, audit: float, breaker: Breaker | None) -> Overseer:
    """That of servers; UsageError for a fallback that is another model, or speculates itself."""
    names = [each.speculative for each in opened.facts if each.speculative]
    if fallback is not None and fallback.tokenizer.fingerprint != opened.tokenizer.fingerprint:
        raise UsageError("the fallback has another tokenizer than the servers", hint="a server of the same model")
    drafters = () if fallback is None else fallback.capabilities.drafters  # of one that can leave it out, "none" is among them
    if fallback is not None and "none" not in drafters:
        raise UsageError(f"the fallback speculates itself ({', '.join(drafters)})", hint="a server without speculation")
    return Overseer(
        names[0].lower() if names else "", opened.tokenizer.vocab_size, audit=audit, breaker=breaker, fallback=fallback
    )
