"""Command validate: does a document fit its schema?"""

from __future__ import annotations

from dataclasses import asdict

import click

from toolkit.cli.options import json_option
from toolkit.cli.output import decoded, emit, read_bytes


@click.command(short_help="Does a JSON document fit a schema?")
@click.argument("file")
@click.option("--schema", required=True, help="JSON Schema: a path, or a name of schemas/.")
@json_option
def validate(file: str, schema: str, as_json: bool) -> int:
    """Check FILE (`-` reads stdin), one JSON document, with formats. Exit code 1 and every violation where it does not fit."""
    from toolkit.grammar.types import grammar_of
    from toolkit.schema import load_schema
    from toolkit.validate.check import Validator

    report = Validator(grammar_of(load_schema(schema))).check(decoded(read_bytes(file), file))
    for item in report.violations:
        click.echo(f"{item.path or '/'}: {item.keyword}: {item.message}", err=True)
    click.echo("valid" if report.valid else f"not valid: {len(report.violations)} violations", err=True)
    if as_json:
        emit({"valid": report.valid, "violations": [asdict(item) for item in report.violations]})
    return int(not report.valid)
