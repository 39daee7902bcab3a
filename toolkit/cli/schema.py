"""Command schema: a schema from examples, what may go wrong with one, and one as a table."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from toolkit.cli.kinds import TEXT
from toolkit.cli.options import json_option
from toolkit.cli.output import console, decoded, emit, read_bytes
from toolkit.cli.review import shown
from toolkit.cli.verdict import no_verdict
from toolkit.contracts import Json
from toolkit.errors import InputError

STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


@click.group(short_help="Schemas: from examples, checked for traps, as a table.")
def schema() -> None:
    """Schemas: infer one from examples, lint it, show it."""


@schema.command(short_help="A schema that all examples of a file fit.")
@click.argument("file")
@click.option("--field", type=TEXT, help="Examples are in this field of each value, such as value of a job's output.")
@click.option("--slack", type=float, default=2.0, show_default=True, help="Bounds, as a multiple of what the examples need.")
@click.option(
    "--enum", "listed", type=click.IntRange(0), default=0, show_default=True, metavar="N",
    help="A field with at most N different texts, each seen twice on average, becomes a list of them (enum). 0: none does.",
)  # fmt: skip
@json_option
def infer(file: str, field: str | None, slack: float, listed: int, as_json: bool) -> int:
    """Print a JSON Schema for the examples in FILE (`-` reads stdin): one JSON document, or one a line. Exit code 2 where they are none."""
    from toolkit.jobs.schema_infer import infer as infer_schema
    from toolkit.results import json_text

    with no_verdict():
        values = _examples(decoded(read_bytes(file), file), file)
        if field is not None:
            values = [_part(number, value, field) for number, value in enumerate(values, 1)]
        found = infer_schema(values, slack=slack, listed=listed)
    click.echo(f"{len(values)} examples", err=True)
    if as_json:
        emit({"schema": found, "examples": len(values)})
    else:
        import json

        click.echo(json.dumps(json.loads(json_text(found)), indent=2, ensure_ascii=False))
    return 0


def _examples(text: str, file: str) -> list[Json]:
    """One value of a whole document, or one of each line; InputError names the line."""
    from toolkit.schema import parse_json

    try:
        return [parse_json(text)]
    except InputError as whole:
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        if len(lines) < 2:
            raise InputError(f"{file}: {whole.message}") from None
    values = []
    for number, line in lines:
        try:
            values.append(parse_json(line))
        except InputError as error:
            raise InputError(f"{file}:{number}: {error.message}", hint="one JSON value a line") from None
    return values


def _part(number: int, value: Json, field: str) -> Json:
    if not isinstance(value, dict) or field not in value:
        has = ", ".join(value) if isinstance(value, dict) else f"a {type(value).__name__}"
        raise InputError(f"example {number} has no field {field!r}: it has {has}")
    return value[field]


@schema.command(short_help="What lets a model run on, or is left to the validator.")
@click.argument("source", metavar="SCHEMA", type=TEXT)
@click.option("--alpha", type=float, default=1.0, show_default=True, help="Length normalisation that the job will use.")
@json_option
def lint(source: str, alpha: float, as_json: bool) -> int:
    """Look through SCHEMA (a path, or a name of schemas/). Exit code 1 where there is an error or a warning."""
    from rich.markup import escape

    from toolkit.jobs.named import named_compile, named_document, schema_name
    from toolkit.jobs.schema_lint import lint as lint_schema

    document = named_document(source)
    with named_compile(schema_name(source)):
        found = lint_schema(document, alpha=alpha)
    out = console(stderr=as_json)
    for each in found:
        place = escape(shown(each.path or "the root", 200))
        hint = f" [dim]({escape(each.hint)})[/]" if each.hint else ""
        out.print(f"[{STYLES[each.level]}]{each.level}[/] {place}: {escape(each.keyword)}: {escape(shown(each.message, 500))}{hint}", highlight=False, soft_wrap=True)  # fmt: skip
    counts = {level: sum(each.level == level for each in found) for level in STYLES}
    click.echo(", ".join(f"{count} {level}s" for level, count in counts.items()), err=True)
    if as_json:
        emit({"findings": [asdict(each) for each in found], **{f"{level}s": count for level, count in counts.items()}})
    return int(counts["error"] + counts["warning"] > 0)


@schema.command(short_help="A schema as a table.")
@click.argument("source", metavar="SCHEMA", type=TEXT)
@json_option
def show(source: str, as_json: bool) -> int:
    """One row for every place in the values that SCHEMA (a path, or a name of schemas/) describes; the last column says what no mask
    enforces, so that only the validator does.
    """
    from toolkit.jobs.named import named_compile, named_document, schema_name
    from toolkit.jobs.schema_lint import partial_of
    from toolkit.jobs.schema_show import rows

    document = named_document(source)
    with named_compile(schema_name(source)):
        partial = [each.partition(" at ") for each in partial_of(document)]
    late: dict[str, list[str]] = {}
    for keyword, _, place in partial:
        late.setdefault("" if place == "the root" else place, []).append(keyword)
    found = [{**asdict(row), "validator_only": late.get(row.path, [])} for row in rows(document)]
    if as_json:
        emit({"rows": found})
    else:
        console(stderr=False).print(_table(found))
    return 0


def _table(found: list[dict[str, Any]]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table()
    for name in ("place", "type", "required", "rules", "what it is", "only the validator"):
        table.add_column(name, overflow="fold")
    for row in found:
        texts = (row["place"] or "(whole)", row["type"], "yes" if row["required"] else "", row["rules"], row["description"])
        table.add_row(*(escape(shown(text, 300)) for text in texts), escape(", ".join(row["validator_only"])))
    return table
