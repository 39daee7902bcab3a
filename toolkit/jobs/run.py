"""Job: every record of an input through a beam search, several at a time, results in input order.

In: an input, a JobSpec, an engine.   Out: the files of jobs.places, and a Summary.
Knows nothing about: how the engine decodes, the command line.
Invariants: one line a record, whatever happens to the record; a record's failure never stops the job, an engine that no longer runs
does (what is written stays, --resume goes on).
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from toolkit.contracts import Engine, Json
from toolkit.errors import UnsupportedError
from toolkit.jobs.attempt import Attempt, Outcome, Patience
from toolkit.jobs.flow import WINDOW as WINDOW
from toolkit.jobs.flow import in_order
from toolkit.jobs.flow_options import Flow
from toolkit.jobs.lines import whole_lines
from toolkit.jobs.manifest import Manifest, digest, versions
from toolkit.jobs.parquet_out import write_parquet
from toolkit.jobs.places import PARQUET, errors_path, lines_path
from toolkit.jobs.prepare import Job as Job
from toolkit.jobs.prepare import check_out as check_out
from toolkit.jobs.prepare import check_resume as check_resume
from toolkit.jobs.prepare import job_terms, preflight
from toolkit.jobs.prepare import prepare as prepare
from toolkit.jobs.read import BadRecord, Record, Source
from toolkit.jobs.store import Store, open_store
from toolkit.jobs.summary import Summary as Summary

Progress = Callable[[int, "int | None", int], None]  # records done, records in all (None = a stream), records failed
Outcomes = Callable[
    [Job, Engine, int, int, str], Iterator[Outcome]
]  # in input order: job, engine, first record, in_flight, name


def run_job(
    job: Job,
    out: Path,
    engine: Engine,
    *,
    resume: bool = False,
    accept_changes: bool = False,
    retry_failed: bool = False,
    in_flight: int | Literal["auto"] = 8,
    record_timeout_s: float | None = None,
    retries: int = 2,
    retry_share: float = 0.1,
    engine_options: Mapping[str, Json] | None = None,
    job_file: Path | None = None,
    stop: threading.Event | None = None,
    on_progress: Progress = lambda done, total, failed: None,
    on_note: Callable[[str], None] = lambda text: None,
    outcomes: Outcomes | None = None,
) -> Summary:
    """Run `job` into `out`; see jobs.places for the files. The records are decoded by `engine`, or by whoever gives the `outcomes` in
    its place (other machines: jobs.ray_run); `engine` then only says what the job can be and which model it has.

    resume goes on with what is there; accept_changes does so under another schema, prompt, option or model (noted in OUT.job.json);
    retry_failed resumes, and first tries again what failed in earlier runs. in_flight to retry_share: see jobs.flow_options.
    engine_options are those that change results (dtype and the like). Once `stop` is set no record is begun, and those that run
    are finished. on_note hears what the user should know.
    UsageError where `out` exists (without `resume`), belongs to another job, or lies inside the input, and where the engine refuses
    the job's schema or beam search for any record; EngineError where the engine stopped running or the disk is full.
    """
    flow = Flow(in_flight=in_flight, record_timeout_s=record_timeout_s, retries=retries, retry_share=retry_share)
    if outcomes is not None:
        _refuse_elsewhere(flow, retry_failed)
    resume = resume or retry_failed or accept_changes
    check_out(job, out, resume=resume)
    preflight(job, engine)
    identity = {"name": engine.capabilities.engine, "model": engine.capabilities.fingerprint, **(engine_options or {})}
    terms = {**job_terms(job), "engine": identity}
    with open_store(out, terms, resume=resume, accept=accept_changes) as store:
        manifest = Manifest(out, _facts(job, out, terms, engine, job_file), on_note=on_note)
        decode = _Decode(job, engine, flow, str(out), stop or threading.Event(), outcomes)
        run = _Run(job, store, manifest, decode, on_progress, terms["input"]["records"])
        if store.dropped:
            on_note(f"{out}: the line of index {store.position} is gone; dropped behind it, and done again: {store.dropped}")
        return run.whole(retry_failed=retry_failed)


def outcomes_of(
    job: Job, engine: Engine, records: Iterator[Record | BadRecord], in_flight: int, name: str
) -> Iterator[Outcome]:
    """The outcomes of some of the job's records, in their order, `in_flight` at a time; request ids begin with `name`."""
    return _Decode(job, engine, Flow(in_flight=in_flight), name, threading.Event()).some(records)


@dataclass(frozen=True, slots=True)
class _Decode:
    """Who turns records into outcomes, and how."""

    job: Job
    engine: Engine
    flow: Flow
    name: str
    stop: threading.Event
    elsewhere: Outcomes | None = None

    def some(self, records: Iterator[Record | BadRecord]) -> Iterator[Outcome]:
        """Of these records, by threads of this process."""
        patience = Patience(self.flow.record_timeout_s, self.flow.retries, self.flow.budget())
        attempt = Attempt(self.engine, self.job.spec, self.job.schema, self.job.grammar, patience)
        return in_order(attempt, records, self.flow.concurrency(), self.name, self.stop)

    def rest(self, start: int) -> Iterator[Outcome]:
        """Of all records from `start` on."""
        if self.elsewhere is None:
            return self.some(islice(self.job.source, start, None))
        assert isinstance(self.flow.in_flight, int)  # see _refuse_elsewhere
        return self._until_stop(self.elsewhere(self.job, self.engine, start, self.flow.in_flight, self.name))

    def _until_stop(self, outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
        with ended(outcomes):
            for outcome in outcomes:
                yield outcome
                if self.stop.is_set():
                    return


def _refuse_elsewhere(flow: Flow, retry_failed: bool) -> None:
    """UnsupportedError for what only threads of this process do."""
    if flow != Flow(in_flight=flow.in_flight if isinstance(flow.in_flight, int) else 8) or retry_failed:
        raise UnsupportedError(
            "where other machines decode, a record timeout, retries, in_flight auto and retry_failed are not possible",
            hint="leave them out, or run the job here",
        )


class _Run:
    """One run over one store."""

    def __init__(self, job: Job, store: Store, manifest: Manifest, decode: _Decode, show: Progress, total: int | None) -> None:
        self._job, self._store, self._manifest, self._decode, self._show = job, store, manifest, decode, show
        self._began = time.perf_counter()
        self._again = 0  # failures of earlier runs that are yet to be tried again: they count as not done
        self.summary = Summary(total, store.position, store.position, store.dropped, store.failures, store.review)

    def whole(self, *, retry_failed: bool) -> Summary:
        """Second tries, then the rest; the manifest says how it ended, whichever way it did."""
        state, reason = "failed", ""
        try:
            self._again = self.summary.failed if retry_failed else 0
            self._tell()
            if retry_failed:
                self._retry()
            self._rest()
            if self._store.out.suffix == PARQUET and not self.summary.stopped:
                write_parquet(self._store.out, self._job.schema)
            state = "stopped" if self.summary.stopped else "complete"
        except BaseException as error:
            state = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
            reason = str(error)[:500]
            with suppress(Exception):  # the error on the way out is the one to tell
                self._write_manifest(state, reason)
            raise
        self._write_manifest(state, reason)
        return self.summary

    def _retry(self) -> None:
        """Try again what failed before this run. A stop in between keeps what was done."""
        records = _those(self._job.source, (line.index for line in whole_lines(errors_path(self._store.out))))
        try:
            with self._store.retried() as retried, ended(self._decode.some(records)) as outcomes:
                for outcome in outcomes:
                    retried.put(outcome.index, outcome.line)
                    self.summary.retried += 1
                    self._again -= 1
                    self._note(outcome)
        finally:
            self._again = 0
            self._store.fold()
            self._count()
        self.summary.stopped = self._decode.stop.is_set()

    def _rest(self) -> None:
        summary = self.summary
        if summary.done != summary.total:
            with ended(self._decode.rest(self._store.position)) as outcomes:
                for outcome in outcomes:
                    (self._store.add if outcome.ok else self._store.fail)(outcome.line)
                    self._note(outcome)
        stopped = self._decode.stop.is_set()
        if summary.total is None and not stopped:
            summary.total = summary.done
        summary.stopped = summary.stopped or (stopped and summary.done != summary.total)

    def _note(self, outcome: Outcome) -> None:
        self.summary.usage.update(outcome.usage)
        self._count()
        self._tell()
        if self._manifest.due:
            self._write_manifest("running")

    def _tell(self) -> None:
        self._show(self.summary.done - self._again, self.summary.total, self.summary.failed)

    def _count(self) -> None:
        self.summary.done, self.summary.failures = self._store.position, self._store.failures
        self.summary.needs_review = self._store.review
        self.summary.elapsed_s = time.perf_counter() - self._began

    def _write_manifest(self, state: str, reason: str = "") -> None:
        self._manifest.write(self.summary.counts(), self.summary.usage, self.summary.elapsed_s, state, reason)


def _those(source: Source, indices: Iterator[int]) -> Iterator[Record | BadRecord]:
    """The records at these indices, both in order."""
    wanted = next(indices, None)
    for record in source:
        if wanted is None:
            return
        if record.index == wanted:
            yield record
            wanted = next(indices, None)


def _facts(job: Job, out: Path, terms: Mapping[str, Any], engine: Engine, job_file: Path | None) -> dict[str, Json]:
    """What the manifest says that does not change."""
    path = job.source.origin.path
    prompt = {name: terms["job"][name] for name in ("style", "system", "prompt", "examples", "fields")}
    return {
        "input": {"path": None if path is None else str(path.resolve()), **terms["input"]},
        "output": {"path": str(out), "lines": str(lines_path(out)), "errors": str(errors_path(out))},
        "job_file": None
        if job_file is None
        else {"path": str(job_file), "sha256": hashlib.sha256(job_file.read_bytes()).hexdigest()},
        "schema_sha256": None if job.schema is None else digest(job.schema),
        "prompt_sha256": digest(prompt),
        "engine": {**terms["engine"], "model_name": engine.capabilities.model},
        "versions": versions(),
    }


@contextmanager
def ended(outcomes: Iterator[Outcome]) -> Iterator[Iterator[Outcome]]:
    """Outcomes that are closed, and what makes them stopped, on the way out."""
    try:
        yield outcomes
    finally:
        if isinstance(outcomes, Generator):
            outcomes.close()
