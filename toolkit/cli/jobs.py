"""Command extract: every record of an input into validated JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.kinds import TEXT, InFlight, place
from toolkit.cli.options import beam_options, engine_options, json_option, leave_out_drafter, opened, result_options
from toolkit.cli.output import console, emit
from toolkit.cli.signals import stop_on_signal
from toolkit.cli.spread import ray_options, ray_pool
from toolkit.engine.engine import is_url
from toolkit.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from toolkit.jobs.spec import JobSpec
    from toolkit.jobs.summary import Summary

JOB_OPTIONS = ("schema", "schema_field", "text_field", "id_field", "encoding", "chunk_tokens", "chunk_overlap", "ground")
RUN_OPTIONS = ("in_flight", "record_timeout_s", "retries", "retry_share", "resume", "retry_failed", "accept_changes")
DEFAULT_IN_FLIGHT = 8
BEAM_OPTIONS = ("width", "alpha", "penalty", "n", "groups", "diversity", "max_tokens")


@click.command(short_help="Many documents into validated JSON, restartable.")
@click.argument("source", metavar="INPUT", type=place())
@click.option("--out", required=True, type=place(), help="Output file, .jsonl or .parquet; more files with its name beside it.")
@click.option(
    "--job",
    "job_file",
    type=place(exists=True, folders=False),
    help="TOML or YAML file with the prompt, examples, options.",
)
@click.option("--schema", type=TEXT, help="JSON Schema of every record: a path, or a name of schemas/.")
@click.option("--schema-field", type=TEXT, help="The field that holds each record's own schema.")
@click.option("--text-field", type=TEXT, help="The field that holds the text.  [default: text]")
@click.option(
    "--id-field",
    type=TEXT,
    help="The field that holds the id, which becomes text.  [default: id where there is one, else the line]",
)
@click.option("--encoding", type=TEXT, help="utf-8, latin-1 or cp1252.  [default: utf-8]")
@beam_options
@click.option(
    "--chunk-tokens", type=click.IntRange(8), help="Cut longer texts into pieces of so many tokens.  [default: never]"
)
@click.option("--chunk-overlap", type=click.IntRange(0), help="Tokens that pieces share.  [default: 0]")
@click.option(
    "--ground",
    type=click.Choice(["off", "report", "review", "error"]),
    help="What a string that is not in the text is: nothing, a null span, needs_review, an error.  [default: report]",
)
@click.option(
    "--in-flight",
    type=InFlight(),
    metavar="N|auto",
    help="Records decoded together, or auto: found by trying.  [default: 8, auto for a server]",
)
@click.option("--record-timeout", "record_timeout_s", type=click.FloatRange(0.001), help="Seconds for one try of a record.")
@click.option(
    "--retries",
    type=click.IntRange(0, 100),
    default=2,
    show_default=True,
    help="Tries after the first, where the engine erred.",
)
@click.option(
    "--retry-share",
    type=click.FloatRange(0, 1),
    default=0.1,
    show_default=True,
    help="Second tries of all records, as a share of them.",
)
@click.option("--resume", is_flag=True, help="Go on with OUT after a stop; nothing is lost or repeated.")
@click.option("--retry-failed", is_flag=True, help="Resume, and first try again what is in OUT.errors.jsonl.")
@click.option("--accept-changes", is_flag=True, help="Resume under another schema, prompt, option or model than before.")
@ray_options
@engine_options
@json_option
@click.pass_context
def extract(
    context: click.Context,
    /,
    source: Path,
    out: Path,
    job_file: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Turn every record of INPUT into JSON that fits its schema.

    INPUT: .jsonl, .csv, .tsv (also .gz, .zst), .parquet, a folder of text files, or - for JSON lines from stdin. OUT gets one line a
    record in input order, or is a .parquet file; what fails goes to OUT.errors.jsonl with the stage and the reason, and the exit code
    is then 1. Options given here win over those of the job file. Ctrl-C finishes what runs; a second one ends it at once.
    """
    from toolkit.jobs.progress import progress
    from toolkit.jobs.run import check_out, check_resume, prepare, run_job

    job = prepare(source, _spec(context, job_file, options))
    how = {name: options.pop(name) for name in RUN_OPTIONS}
    elsewhere = ray_pool(options, job)
    how["in_flight"] = how["in_flight"] or ("auto" if is_url(options["engine"]) and elsewhere is None else DEFAULT_IN_FLIGHT)
    resume = any(how[name] for name in ("resume", "retry_failed", "accept_changes"))
    check_out(job, out, resume=resume)
    if resume:
        check_resume(job, out, accept=how["accept_changes"])
    terms = result_options(options)
    try:
        with opened(options) as engine, progress(console()) as on_progress, stop_on_signal() as stop:
            leave_out_drafter(engine)
            summary = run_job(
                job,
                out,
                engine,
                **how,
                outcomes=elsewhere,
                engine_options=terms,
                job_file=job_file,
                stop=stop,
                on_progress=on_progress,
                on_note=lambda text: click.echo(f"note: {text}", err=True),
            )
    except KeyboardInterrupt:
        click.echo(f"stopped: what is in {out} stays, --resume goes on", err=True)
        raise
    console().print(_table(summary, out))
    if summary.stopped:
        click.echo(f"stopped: what is in {out} stays, --resume goes on", err=True)
        raise KeyboardInterrupt
    if as_json:
        emit({**summary.fields(), "out": str(out)})
    return int(summary.failed > 0)


def _spec(context: click.Context, job_file: Path | None, options: dict[str, Any]) -> JobSpec:
    """The job file's options under those that were typed; a schema that is typed replaces either kind of the file's."""
    from toolkit.jobs.spec import make_spec, read_spec

    given = {name: options.pop(name) for name in (*JOB_OPTIONS, *BEAM_OPTIONS)}
    typed = {
        name: value
        for name, value in given.items()
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
    }
    filed = read_spec(job_file) if job_file else {}
    if {"schema", "schema_field"} & typed.keys():
        filed = {name: value for name, value in filed.items() if name not in ("schema", "schema_field")}
    try:
        return make_spec(filed, typed)
    except UsageError as error:
        raise UsageError(f"job file {job_file}: {error.message}" if job_file else error.message, hint=error.hint) from None


def _table(summary: Summary, out: Path) -> Table:
    from rich.markup import escape
    from rich.table import Table

    from toolkit.jobs.places import errors_path

    table = Table(title="job", title_justify="left", show_header=False)
    table.add_column(justify="left")
    table.add_column(justify="right", overflow="fold")
    rows = [("records", "?" if summary.total is None else str(summary.total)), ("valid", f"{summary.valid} in {out}")]
    if summary.needs_review:
        rows.append(("to be looked at", str(summary.needs_review)))
    rows += [(f"failed: {stage}", str(count)) for stage, count in sorted(summary.failures.items())]
    if summary.failed:
        rows.append(("failures in", str(errors_path(out))))
    if summary.resumed_at:
        rows.append(("done before this run", str(summary.resumed_at)))
    if summary.retried:
        rows.append(("failures tried again", str(summary.retried)))
    if summary.dropped:
        rows.append(("dropped and done again", str(summary.dropped)))
    rows.append(("seconds", f"{summary.elapsed_s:.1f}"))
    rows += [(name.replace("_", " "), str(count)) for name, count in summary.usage.items()]
    for name, value in rows:
        table.add_row(name, escape(value))
    return table
