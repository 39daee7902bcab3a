"""Prepare: a job checked as far as that goes before anything runs.

In: an input, a JobSpec; then an output place; then an engine.   Out: a Job, or the UsageError of whoever asked for it.
Knows nothing about: how records become lines.
Invariants: what no record could meet is refused here, before an output exists.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.contracts import Engine, Grammar, Json, Request
from toolkit.errors import CancelledError, InputError, UsageError
from toolkit.grammar.types import grammar_of
from toolkit.jobs.named import named_compile, named_schema, schema_name
from toolkit.jobs.parquet_out import check_parquet
from toolkit.jobs.places import check_ending, check_free, lines_path, terms_path, writable
from toolkit.jobs.read import Source, open_source
from toolkit.jobs.schema_places import check_spec
from toolkit.jobs.spec import JobSpec
from toolkit.jobs.terms import check_same, lock_terms
from toolkit.results import beam_result, json_text
from toolkit.validate.check import Validator

PREFLIGHT_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class Job:
    """A checked input, spec and schema; nothing has run yet. `schema` is None where each record brings its own."""

    source: Source
    spec: JobSpec
    schema: Json
    grammar: Grammar | None


def prepare(place: object, spec: JobSpec, *, root: Path | None = None) -> Job:
    """Check everything that needs no engine: the input, the schema, the places that the spec names in it, the few-shot examples.

    place: a path, `-` for stdin, a DataFrame, an Arrow table, a dataset, or mappings (see jobs.sources). `root` is where named
    schemas are looked up. Raises UsageError (SchemaError for the schema), MissingExtraError.
    """
    source = open_source(place, spec)
    schema, grammar = (None, None) if spec.schema_ is None else named_schema(spec.schema_, root)
    if schema is not None:
        check_spec(spec, schema)
    for number, example in enumerate(spec.examples, start=1):
        own = grammar if example.schema_ is None else grammar_of(example.schema_)
        report = Validator(own).check(json_text(example.value)) if own else None
        if report and not report.valid:
            raise UsageError(f"example {number} does not fit its schema: {report.violations[0].message}")
    return Job(source, spec, schema, grammar)


def check_out(job: Job, out: Path, *, resume: bool) -> None:
    """UsageError where `out` cannot be this job's output; costs nothing, so it comes before an engine is loaded."""
    origin = job.source.origin
    if resume and not origin.repeatable:
        raise UsageError(
            f"input {origin.name} is a stream, which can be read once: a job that reads it cannot be resumed",
            hint="save the input to a file that ends in .jsonl",
        )
    if origin.path is not None:
        place = origin.path.resolve()
        if place.is_dir() and place in out.resolve().parents:
            raise UsageError(
                f"output {out} lies in the input folder {origin.path}: it would become input", hint="name a place outside"
            )
        if place in (out.resolve(), lines_path(out).resolve()):
            raise UsageError(f"output {out} is the input itself", hint="name another file")
    if not (resume and terms_path(out).exists()):
        check_ending(out)
    check_parquet(out)
    check_free(out, resume=resume)


def job_terms(job: Job) -> dict[str, Json]:
    """What a resume must find again, but for the engine. UsageError where the input is damaged further on."""
    return {
        "input": {"sha256": job.source.digest(), "records": job.source.count()},
        "job": {**job.spec.plain(), "schema": job.schema},
    }


def check_resume(job: Job, out: Path, *, accept: bool) -> None:
    """UsageError where `out` is another job's, or is being written; so that no engine is loaded for it. `accept` as of run_job."""
    if terms_path(out).exists():
        with writable(out), lock_terms(out):
            check_same(out, job_terms(job), accept=accept)


def preflight(job: Job, engine: Engine) -> None:
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
