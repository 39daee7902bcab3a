"""Job: every record of an input through a beam search, several at a time, results in input order.

In: an input path, a JobSpec, an engine.   Out: the files of jobs.store, and a Summary.
Knows nothing about: how the engine decodes, the command line.
Invariants: what no record could meet is refused before an output exists; one line a record, whatever happens to the record; a record is handed out at most WINDOW times `in_flight` ahead of the
oldest unfinished one, so memory is bounded; a record's failure never stops the job, an engine that no longer runs does (what is
written stays, --resume goes on).
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from toolkit.contracts import Engine, Grammar, Json, Request
from toolkit.errors import CancelledError, InputError, UsageError
from toolkit.grammar.types import grammar_of
from toolkit.jobs.attempt import Attempt, Outcome
from toolkit.jobs.named import named_compile, named_schema, schema_name
from toolkit.jobs.read import BadRecord, Record, Source, open_source
from toolkit.jobs.spec import JobSpec
from toolkit.jobs.store import check_free, open_store
from toolkit.results import beam_result, json_text
from toolkit.validate.check import Validator

WINDOW = 4  # records handed out a worker: what hides one slow record at the head of the line

PREFLIGHT_EVERY_S = 0.02

Progress = Callable[[int, int, int], None]  # records done, records in all, records failed


@dataclass(frozen=True, slots=True)
class Job:
    """A checked input, spec and schema; nothing has run yet. `schema` is None where each record brings its own."""

    source: Source
    spec: JobSpec
    schema: Json
    grammar: Grammar | None


Outcomes = Callable[[Job, Engine, int, int, str], Iterator[Outcome]]  # in input order; the arguments are those of `_here`


@dataclass(slots=True)
class Summary:
    """What a job came to. Counts cover the whole output, `usage` and `elapsed_s` this run only."""

    total: int
    done: int
    resumed_at: int
    dropped: int  # whole lines behind one that was gone, cut off and done again
    failures: Counter[str]
    elapsed_s: float = 0.0
    usage: Counter[str] = field(default_factory=Counter)

    @property
    def failed(self) -> int:
        return self.failures.total()

    @property
    def valid(self) -> int:
        return self.done - self.failed

    def fields(self) -> dict[str, Json]:
        """The summary as plain JSON."""
        return {
            "records": self.total,
            "done": self.done,
            "valid": self.valid,
            "failed": self.failed,
            "failures": dict(self.failures),
            "resumed_at": self.resumed_at,
            "dropped": self.dropped,
            "elapsed_s": self.elapsed_s,
            "usage": dict(self.usage),
        }


def prepare(path: Path, spec: JobSpec, *, root: Path | None = None) -> Job:
    """Check everything that needs no engine: the input, the schema, the few-shot examples against it.

    `root` is where named schemas are looked up. Raises UsageError (SchemaError for the schema).
    """
    source = open_source(path, spec)
    schema, grammar = (None, None) if spec.schema_ is None else named_schema(spec.schema_, root)
    for number, example in enumerate(spec.examples, start=1):
        own = grammar if example.schema_ is None else grammar_of(example.schema_)
        report = Validator(own).check(json_text(example.value)) if own else None
        if report and not report.valid:
            raise UsageError(f"example {number} does not fit its schema: {report.violations[0].message}")
    return Job(source, spec, schema, grammar)


def run_job(
    job: Job,
    out: Path,
    engine: Engine,
    *,
    resume: bool = False,
    in_flight: int = 8,
    engine_options: Mapping[str, Json] | None = None,
    on_progress: Progress = lambda done, total, failed: None,
    on_note: Callable[[str], None] = lambda text: None,
    outcomes: Outcomes | None = None,
) -> Summary:
    """Run `job` into `out`; see jobs.store for the files. `in_flight` records are decoded together, by `engine` or by whoever gives
    the `outcomes` in its place (other machines: jobs.ray_run); `engine` then only says what the job can be and which model it has.

    `engine_options` are those that change results (dtype and the like): a resume with others is refused. `on_note` hears what the
    user should know. UsageError where `out` exists (without `resume`), belongs to another job, or lies inside the input, and where
    the engine refuses the job's schema or beam search for any record; EngineError where the engine stopped running.
    """
    if not 1 <= in_flight <= 256:
        raise UsageError(f"in_flight = {in_flight!r} is not allowed: an integer from 1 to 256")
    check_out(job, out, resume=resume)
    _preflight(job, engine)
    total = job.source.count()
    terms = {
        "input": {"sha256": job.source.digest(), "records": total},
        "job": {**job.spec.plain(), "schema": job.schema},
        "engine": {"name": engine.capabilities.engine, "model": engine.capabilities.fingerprint, **(engine_options or {})},
    }
    began = time.perf_counter()
    with open_store(out, terms, resume=resume) as store:
        summary = Summary(total, store.position, store.position, store.dropped, store.failures)
        if store.dropped:
            on_note(f"{out}: the line of index {store.position} is gone; dropped behind it, and done again: {store.dropped}")
        on_progress(summary.done, total, summary.failed)
        for outcome in (outcomes or _here)(job, engine, store.position, in_flight, str(out)):
            (store.add if outcome.ok else store.fail)(outcome.line)
            summary.done = store.position
            summary.usage.update(outcome.usage)
            summary.elapsed_s = time.perf_counter() - began
            on_progress(summary.done, total, summary.failed)
    return summary


def check_out(job: Job, out: Path, *, resume: bool) -> None:
    """UsageError where `out` cannot be this job's output; costs nothing, so it comes before an engine is loaded."""
    folder = job.source.path.resolve()
    if folder.is_dir() and folder in out.resolve().parents:
        raise UsageError(
            f"output {out} lies in the input folder {job.source.path}: it would become input", hint="name a place outside"
        )
    if out.resolve() == folder:
        raise UsageError(f"output {out} is the input itself", hint="name another file")
    check_free(out, resume=resume)


def _preflight(job: Job, engine: Engine) -> None:
    """Ask the engine for the job's beam search after the shortest of prompts and cancel it once it runs.

    UsageError where it is refused, as every record would be: a grammar that does not compile, too few KV blocks.
    """
    request = Request(id="preflight", prompt="a", beam=job.spec.beam, grammar=job.grammar)
    with ThreadPoolExecutor(1, thread_name_prefix="preflight") as pool:
        running = pool.submit(lambda: beam_result(engine.generate([request])))
        try:
            _cancel(engine, request.id, running)
        except BaseException:  # interrupted: do not leave before it is gone
            _cancel(engine, request.id, running)
            raise
    with suppress(CancelledError, InputError), named_compile(schema_name(job.spec.schema_)):  # these two: it ran
        running.result()


def _cancel(engine: Engine, request_id: str, running: Future[Any]) -> None:
    """Again and again until it has ended: an engine leaves an id alone that it has not met yet."""
    while not wait([running], timeout=PREFLIGHT_EVERY_S).done:
        engine.cancel(request_id)


def _here(job: Job, engine: Engine, start: int, in_flight: int, name: str) -> Iterator[Outcome]:
    """The outcomes from record `start` on, by threads of this process."""
    return outcomes_of(job, engine, islice(job.source, start, None), in_flight, name)


def outcomes_of(
    job: Job, engine: Engine, records: Iterator[Record | BadRecord], in_flight: int, name: str
) -> Iterator[Outcome]:
    """The outcomes of some of the job's records, in their order, `in_flight` at a time; request ids begin with `name`."""
    return _in_order(Attempt(engine, job.spec, job.schema, job.grammar), records, in_flight, name)


def _in_order(attempt: Attempt, records: Iterator[Record | BadRecord], in_flight: int, name: str) -> Iterator[Outcome]:
    """Outcomes in the order of `records`; request ids begin with `name`. On the way out by any door, nothing is left running."""
    window: deque[Future[Outcome]] = deque()
    with ThreadPoolExecutor(in_flight, thread_name_prefix="record") as pool:
        try:
            for record in records:
                if len(window) == WINDOW * in_flight:
                    yield window.popleft().result()
                window.append(pool.submit(attempt, record, f"{name}:{record.index}"))
            while window:
                yield window.popleft().result()
        finally:
            attempt.stop()
            pool.shutdown(wait=True, cancel_futures=True)
