"""Tools: what a program may offer - function schemas and Python functions - as the one kind that formats and grammars know.

In: OpenAI-style function schemas or Python functions.   Out: a `ToolSet`, or the JSON Schema of one call.
Knows nothing about: prompts, models, how a call is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from toolkit.contracts import Json, require
from toolkit.errors import UsageError
from toolkit.grammar.types import grammar_of
from toolkit.schema import parse_json
from toolkit.validate.tools.offered import ToolSet

Tool: TypeAlias = Mapping[str, Any] | Callable[..., Any]


def tool_set(tools: Sequence[Tool]) -> ToolSet:
    """The tools, checked. Raises UsageError for malformed tools, SchemaError for their schemas."""
    return ToolSet(tool_list(tools))


def tool_list(tools: Sequence[Tool]) -> list[Mapping[str, Any]]:
    """The tools as function schemas, not yet checked; UsageError for what is no list of them."""
    require(isinstance(tools, list | tuple) and len(tools) > 0, "tools", tools, "a non-empty list of tools")
    return [tool if isinstance(tool, Mapping) else _of_function(tool) for tool in tools]


def tools_schema(tools: Sequence[Tool]) -> dict[str, Json]:
    """The schema of one call of one of `tools`, `{"anyOf": [{name, arguments} per tool]}`. Raises as `tool_set`."""
    return tool_set(tools).call_schema()


def _of_function(tool: Any) -> dict[str, Json]:
    if not callable(tool) or isinstance(tool, type):
        raise UsageError(f"tool {tool!r:.200} is not allowed: a function schema or a Python function")
    return {"name": tool.__name__, "parameters": parse_json(grammar_of(tool).source)}
