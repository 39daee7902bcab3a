"""Command validate: does a document fit its schema?"""

from __future__ import annotations

from dataclasses import asdict

import click

from toolkit.cli.kinds import TEXT
from toolkit.cli.options import json_option
from toolkit.cli.output import decoded, emit, read_bytes
from toolkit.contracts import Report
from toolkit.errors import EngineError

UNDECIDED = "undecided"  # the keyword of a violation that says that there was no verdict


@click.command(short_help="Does a JSON document fit a schema?")
@click.argument("file")
@click.option("--schema", required=True, type=TEXT, help="JSON Schema: a path, or a name of schemas/.")
@json_option
def validate(file: str, schema: str, as_json: bool) -> int:
    """Check FILE (`-` reads stdin), one JSON document, with formats.

    Exit code 1 and every violation where it does not fit; exit code 3 where that could not be decided in time.
    """
    from toolkit.jobs.named import named_schema
    from toolkit.validate.check import Validator

    report = Validator(named_schema(schema)[1]).check(decoded(read_bytes(file), file))
    undecided = is_undecided(report)
    for item in report.violations:
        click.echo(f"{item.path or '/'}: {item.keyword}: {item.message}", err=True)
    verdict = "valid" if report.valid else f"not valid: {len(report.violations)} violations"
    click.echo("undecided: neither valid nor not" if undecided else verdict, err=True)
    if as_json:
        violations = [asdict(item) for item in report.violations]
        emit({"valid": report.valid, "undecided": undecided, "violations": violations})
    return EngineError.exit_code if undecided else int(not report.valid)


def is_undecided(report: Report) -> bool:
    """Was no fault found, but no verdict either?"""
    return not report.valid and all(item.keyword == UNDECIDED for item in report.violations)
