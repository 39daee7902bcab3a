"""Command validate: does a document fit its schema, do a model's tool calls fit the tools?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from toolkit.cli.kinds import TEXT
from toolkit.cli.options import json_option
from toolkit.cli.output import decoded, emit, read_bytes
from toolkit.contracts import Json, Report, Violation
from toolkit.errors import EngineError, InputError, UsageError


@click.command(short_help="Does a document fit a schema, do tool calls fit the tools?")
@click.argument("file")
@click.option("--schema", type=TEXT, help="JSON Schema: a path, or a name of schemas/.")
@click.option("--tools", type=TEXT, help="JSON file: a list of OpenAI-style function schemas. FILE is then a model's output.")
@click.option("--format", "format_", type=TEXT, help="How the model writes calls: hermes, llama3, ...  [default: hermes]")
@click.option("--choice", type=TEXT, help="auto, required, none, or the tool that must be called.  [default: auto]")
@click.option("--parallel", type=click.IntRange(1), help="The most calls.  [default: 64]")
@click.option(
    "--reasoning", type=click.Choice(["tags", "open", "off"]), help="open: the template opened <think>.  [default: tags]"
)
@json_option
def validate(file: str, schema: str | None, tools: str | None, as_json: bool, **asked: Any) -> int:
    """Check FILE (`-` reads stdin): with --schema one JSON document, with formats; with --tools a model's text and tool calls.

    Exit code 1 and every violation where it does not fit; exit code 3 where that could not be decided in time.
    """
    if (schema is None) == (tools is None):
        raise UsageError(
            "validate takes one of --schema and --tools", hint="--schema for a document, --tools for a model's output"
        )
    if schema is not None:
        extra = [name for name, value in asked.items() if value is not None]
        if extra:
            raise UsageError(f"--{extra[0].strip('_')} goes with --tools, not with --schema")
        return _document(file, schema, as_json)
    return _calls(file, str(tools), {name: value for name, value in asked.items() if value is not None}, as_json)


def _document(file: str, schema: str, as_json: bool) -> int:
    from toolkit.jobs.named import named_schema
    from toolkit.validate.check import Validator

    report = Validator(named_schema(schema)[1]).check(decoded(read_bytes(file), file))
    violations = [asdict(item) for item in report.violations]
    fields = {"valid": report.valid, "undecided": is_undecided(report), "violations": violations}
    return _tell(report.violations, fields, as_json)


def _calls(file: str, tools: str, asked: dict[str, Any], as_json: bool) -> int:
    from toolkit.validate.tools.stream import tool_stream

    format_ = asked.pop("format_", "hermes")
    stream = tool_stream(format_, tools_in(tools), **asked)
    stream.feed(read_bytes(file))
    result = stream.close()
    fields = {
        "valid": result.valid,
        "undecided": is_undecided(Report(None, result.errors)),
        "calls": [{"name": each.name, "arguments": each.arguments} for each in result.calls],
        "content": result.content,
        "reasoning": result.reasoning,
        "errors": [asdict(item) for item in result.errors],
    }
    count = len(result.calls)
    said = (
        f"{count} call{'s' * (count != 1)}" if count else f"no tool call in the format {format_}, all of it is the reply's text"
    )
    hint = "" if count else " (--choice required makes that a fault, --format names another format)"
    return _tell(result.errors, fields, as_json, f": {said}{hint}")


def tools_in(file: str) -> Json:
    """The list of tools in a file, or under `tools` of the object in it, as a request to a server has it."""
    from toolkit.schema import parse_json

    try:
        found = parse_json(read_bytes(file))
    except InputError as error:
        raise UsageError(f"tools {file}: {error.message}") from None
    return found.get("tools") if isinstance(found, dict) and "name" not in found else found


def _tell(violations: Sequence[Violation], fields: dict[str, Json], as_json: bool, what: str = "") -> int:
    for item in violations:
        click.echo(f"{item.path or '/'}: {item.keyword}: {item.message}", err=True)
    verdict = f"valid{what}" if fields["valid"] else f"not valid: {len(violations)} violations"
    click.echo("undecided: neither valid nor not" if fields["undecided"] else verdict, err=True)
    if as_json:
        emit(fields)
    return EngineError.exit_code if fields["undecided"] else int(not fields["valid"])


def is_undecided(report: Report) -> bool:
    """Was no fault found, but no verdict either?"""
    from toolkit.validate.judge import UNDECIDED

    return not report.valid and all(item.keyword == UNDECIDED for item in report.violations)
