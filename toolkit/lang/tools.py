"""Tools: a set of callable functions as the one JSON Schema that a tool call must satisfy.

In: OpenAI-style function schemas or Python functions.   Out: `{"anyOf": [{name, arguments} per tool]}`.
Invariants: each tool's own references still point where they did; arguments that the schema does not name are forbidden
unless it says otherwise; the order of properties is the schema's.

Knows nothing about: prompts, models, the frame that a model puts around a call.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from toolkit.contracts import Json, require
from toolkit.errors import SchemaError, UsageError
from toolkit.grammar.types import grammar_of
from toolkit.schema import check_schema, parse_json, subschemas

# Keywords that may name further arguments of the same object: beside one of them "forbidden" cannot be said.
IN_PLACE = frozenset(("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas"))
Tool: TypeAlias = Mapping[str, Any] | Callable[..., Any]


def tools_schema(tools: Sequence[Tool]) -> dict[str, Json]:
    """The schema of one call of one of `tools`. Raises UsageError for malformed tools, SchemaError for their schemas."""
    require(isinstance(tools, list | tuple) and len(tools) > 0, "tools", tools, "a non-empty list of tools")
    named = [_named_parameters(tool) for tool in tools]
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"tools named {', '.join(twice)} occur more than once: names must differ")
    return {"anyOf": [_call(index, name, parameters) for index, (name, parameters) in enumerate(named)]}


def _call(index: int, name: str, parameters: Json) -> dict[str, Json]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": _moved(parameters, f"/anyOf/{index}/properties/arguments")},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _named_parameters(tool: Tool) -> tuple[str, Json]:
    name, parameters = _of_mapping(tool) if isinstance(tool, Mapping) else _of_function(tool)
    require(isinstance(name, str) and name != "", "tool name", name, "a non-empty string")
    require(isinstance(parameters, Mapping), f"parameters of tool {name}", parameters, "a JSON Schema object")
    try:
        check_schema(parameters)
    except SchemaError as error:
        raise SchemaError(
            f"parameters of tool {name}: {error.message}", path=error.path, keyword=error.keyword, hint=error.hint
        ) from error
    return name, {"type": "object", **parameters}


def _of_mapping(tool: Mapping[str, Any]) -> tuple[Any, Any]:
    function = tool.get("function") if tool.get("type") == "function" else tool
    if not isinstance(function, Mapping) or "name" not in function:
        raise UsageError(
            f"tool {tool!r:.200} is not a function schema",
            hint='write {"type": "function", "function": {"name": ..., "parameters": {...}}}',
        )
    return function["name"], function.get("parameters", {})


def _of_function(tool: Any) -> tuple[Any, Any]:
    if not callable(tool) or isinstance(tool, type):
        raise UsageError(f"tool {tool!r:.200} is not allowed: a function schema or a Python function")
    return tool.__name__, parse_json(grammar_of(tool).source)


def _moved(parameters: Json, pointer: str) -> Json:
    """`parameters` as it reads below `pointer`: local references follow, open argument objects are closed."""
    moved = copy.deepcopy(dict(parameters))
    moved.pop("$schema", None)
    moved.pop("$id", None)
    for _, schema in subschemas(moved):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
            schema["$ref"] = f"#{pointer}{reference[1:]}"
    if moved["type"] == "object" and not IN_PLACE & moved.keys():
        moved.setdefault("additionalProperties", False)
    return moved
