"""Watches: what a free text has to be, as a program writes it down.

In: a schema or Python type, tools, or a language.   Out: a contracts.Watch.
Knows nothing about: engines, how texts are read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from toolkit.contracts import Watch
from toolkit.errors import UsageError
from toolkit.grammar.types import grammar_of
from toolkit.lang.tools import Tool, tool_list
from toolkit.schema import load_schema


def watch(
    *,
    schema: object | None = None,
    tools: Sequence[Tool] | None = None,
    format: str | None = None,  # noqa: A002 - as in toolkit.tool_stream
    choice: str = "auto",
    parallel: int = 64,
    reasoning: Literal["tags", "open", "off"] = "tags",
    code: Literal["python", "json"] | None = None,
) -> Watch:
    """What the text of `free(name, watch=...)` has to be: one of

    schema: one JSON value - a JSON Schema (True allows every value), the name or path of a schema file, a pydantic model or other type.
    tools, format: a turn of a model that may call these tools in that format; `choice`, `parallel`, `reasoning` as in `tool_stream`.
    code: a program that parses, in the first fence of three backticks where there is one.

    Raises UsageError for anything else; SchemaError comes from the segment.
    """
    given = [name for name, value in (("schema", schema), ("tools", tools), ("code", code)) if value is not None]
    if len(given) != 1:
        raise UsageError(f"watch takes one of schema, tools and code, not {' and '.join(given) or 'none of them'}")
    if (format is not None) != (tools is not None) or (tools is None and (choice, parallel, reasoning) != ("auto", 64, "tags")):
        raise UsageError(
            "watch: format goes with tools, as do choice, parallel and reasoning", hint='tools=[...], format="hermes"'
        )
    if code is not None:
        return Watch(kind="code", language=code)
    if tools is not None:
        listed = json.dumps(tool_list(tools))
        return Watch(kind="tools", format=str(format), tools=listed, choice=choice, parallel=parallel, reasoning=reasoning)
    found = grammar_of(load_schema(schema) if isinstance(schema, str) else {} if schema is True else schema)
    if found.kind != "json_schema":
        raise UsageError(f"watch: {schema!r:.100} is no JSON but a {found.kind}", hint="gen(regex=...) or beam(choices=...)")
    return Watch(kind="json", schema=found.source, python_type=found.python_type)
