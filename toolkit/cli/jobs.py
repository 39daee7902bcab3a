"""Command extract: every record of an input into validated JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.kinds import TEXT, place
from toolkit.cli.options import beam_options, engine_options, json_option, opened, result_options
from toolkit.cli.output import console, emit
from toolkit.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from toolkit.jobs.run import Summary
    from toolkit.jobs.spec import JobSpec

JOB_OPTIONS = ("schema", "schema_field", "text_field", "id_field", "encoding")
BEAM_OPTIONS = ("width", "alpha", "penalty", "n", "groups", "diversity", "max_tokens")


@click.command(short_help="Many documents into validated JSON, restartable.")
@click.argument("source", metavar="INPUT", type=place())
@click.option("--out", required=True, type=place(), help="Output file; OUT.errors.jsonl and OUT.job.json beside it.")
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
@click.option("--in-flight", type=click.IntRange(1, 256), default=8, show_default=True, help="Records decoded together.")
@click.option("--resume", is_flag=True, help="Go on with OUT after a stop; nothing is lost or repeated.")
@engine_options
@json_option
@click.pass_context
def extract(
    context: click.Context,
    /,
    source: Path,
    out: Path,
    job_file: Path | None,
    in_flight: int,
    resume: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Turn every record of INPUT (.jsonl, .csv, .tsv, or a folder of text files) into JSON that fits its schema.

    OUT gets one line a record in input order; what fails goes to OUT.errors.jsonl with the stage and the reason, and the exit code
    is then 1. Options given here win over those of the job file.
    """
    from toolkit.jobs.progress import progress
    from toolkit.jobs.run import check_out, prepare, run_job

    job = prepare(source, _spec(context, job_file, options))
    check_out(job, out, resume=resume)
    terms = result_options(options)
    try:
        with opened(options) as engine, progress(console()) as on_progress:
            summary = run_job(
                job,
                out,
                engine,
                resume=resume,
                in_flight=in_flight,
                engine_options=terms,
                on_progress=on_progress,
                on_note=lambda text: click.echo(f"note: {text}", err=True),
            )
    except KeyboardInterrupt:
        click.echo(f"stopped: what is in {out} stays, --resume goes on", err=True)
        raise
    console().print(_table(summary, out))
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

    from toolkit.jobs.store import errors_path

    table = Table(title="job", title_justify="left", show_header=False)
    table.add_column(justify="left")
    table.add_column(justify="right", overflow="fold")
    rows = [("records", str(summary.total)), ("valid", f"{summary.valid} in {out}")]
    rows += [(f"failed: {stage}", str(count)) for stage, count in sorted(summary.failures.items())]
    if summary.failed:
        rows.append(("failures in", str(errors_path(out))))
    if summary.resumed_at:
        rows.append(("done before this run", str(summary.resumed_at)))
    if summary.dropped:
        rows.append(("dropped and done again", str(summary.dropped)))
    rows.append(("seconds", f"{summary.elapsed_s:.1f}"))
    rows += [(name.replace("_", " "), str(count)) for name, count in summary.usage.items()]
    for name, value in rows:
        table.add_row(name, escape(value))
    return table
