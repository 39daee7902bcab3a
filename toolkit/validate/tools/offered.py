"""Offered: the tools that a model may call, and whether a call is one of them.

In: OpenAI-style function schemas, which nobody has checked.   Out: a `ToolSet`: names, what a text may mean, a judge of arguments.
Knows nothing about: formats, streams, Python functions (`toolkit.lang.tools` turns those into schemas).
Invariants: each tool's own references still point where they did; arguments that the schema does not name are forbidden unless
it says otherwise; the order of properties is the schema's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from toolkit.contracts import Json, Violation, require
from toolkit.errors import SchemaError, UsageError
from toolkit.schema import OutOfTime, checked_schema, deadline, seconds_left, subschemas
from toolkit.validate.outline import Outline

if TYPE_CHECKING:
    from toolkit.validate.judge import SchemaJudge

CHECK_SECONDS = 1.0
MOST_TOOLS = 512  # each costs some milliseconds before the first token; servers take 128
TOOLS_SECONDS = 5.0  # of CPU time, to check the schemas of all of them
MOST_VIOLATIONS = 8
# Keywords that may name further arguments of the same object: beside one of them "forbidden" cannot be said.
IN_PLACE = frozenset(("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas"))


class Offered:
    """One tool: its name and the schema of its arguments, an object."""

    def __init__(self, name: str, parameters: dict[str, Json]) -> None:
        self.name, self.parameters = name, parameters

    @cached_property
    def outline(self) -> Outline:
        """What the schema says plainly about each argument."""
        return Outline.of(self.parameters)

    def violations(self, arguments: Json) -> list[Violation]:
        """What is wrong with the arguments of a call."""
        return self._judge.violations(arguments, MOST_VIOLATIONS)

    @cached_property
    def _judge(self) -> SchemaJudge:
        from toolkit.validate.judge import SchemaJudge  # and with it jsonschema

        return SchemaJudge(self.parameters, CHECK_SECONDS)


class ToolSet(Mapping[str, Offered]):
    """Tools by name, in their order. Raises UsageError for tools that are malformed, SchemaError for their schemas."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] | ToolSet) -> None:
        if isinstance(tools, ToolSet):
            self._tools: dict[str, Offered] = tools._tools
            return
        require(isinstance(tools, list | tuple) and len(tools) > 0, "tools", tools, "a non-empty list of tools")
        require(len(tools) <= MOST_TOOLS, "number of tools", len(tools), f"at most {MOST_TOOLS}")
        try:
            with deadline(TOOLS_SECONDS):
                named = [_named_parameters(tool) for tool in tools]
        except OutOfTime:
            seconds_left()  # an outer deadline is for whoever set it
            why = f"the schemas of {len(tools)} tools cannot be checked within {TOOLS_SECONDS} s"
            raise SchemaError(why, keyword="tools", hint="offer fewer") from None
        names = [name for name, _ in named]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(f"tools named {', '.join(twice)} occur more than once: names must differ")
        self._tools = {name: Offered(name, _closed(parameters)) for name, parameters in named}

    def __getitem__(self, name: str) -> Offered:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    def only(self, names: Sequence[str]) -> ToolSet:
        """The tools of those names."""
        chosen = ToolSet(self)
        chosen._tools = {name: self._tools[name] for name in names}
        return chosen

    def call_schema(self, arguments: str = "arguments") -> dict[str, Json]:
        """The schema of one call, `{"name": ..., "arguments": {...}}`; `arguments` is what that member is called."""
        return {"anyOf": [_call(index, each, arguments) for index, each in enumerate(self.values())]}


def _call(index: int, tool: Offered, arguments: str) -> dict[str, Json]:
    return {
        "type": "object",
        "properties": {
            "name": {"const": tool.name},
            arguments: _moved(tool.parameters, f"/anyOf/{index}/properties/{arguments}"),
        },
        "required": ["name", arguments],
        "additionalProperties": False,
    }


def _named_parameters(tool: Any) -> tuple[str, dict[str, Json]]:
    function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else tool
    if not isinstance(function, Mapping) or "name" not in function:
        raise UsageError(
            f"tool {tool!r:.200} is not a function schema",
            hint='write {"type": "function", "function": {"name": ..., "parameters": {...}}}',
        )
    name, parameters = function["name"], function.get("parameters", {})
    require(isinstance(name, str) and name != "", "tool name", name, "a non-empty string")
    require(isinstance(parameters, Mapping), f"parameters of tool {name}", parameters, "a JSON Schema object")
    try:
        return name, {"type": "object", **checked_schema(dict(parameters))}
    except SchemaError as error:
        raise SchemaError(
            f"parameters of tool {name}: {error.message}", path=error.path, keyword=error.keyword, hint=error.hint
        ) from error


def _closed(parameters: dict[str, Json]) -> dict[str, Json]:
    """The schema with open argument objects closed."""
    closed = copy.deepcopy(parameters)
    if closed["type"] == "object" and not IN_PLACE & closed.keys():
        closed.setdefault("additionalProperties", False)
    return closed


def _moved(parameters: dict[str, Json], pointer: str) -> Json:
    """`parameters` as it reads below `pointer`: local references follow."""
    moved = copy.deepcopy(parameters)
    moved.pop("$schema", None)
    moved.pop("$id", None)
    for _, schema in subschemas(moved):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
            schema["$ref"] = f"#{pointer}{reference[1:]}"
    return moved
