"""Grammar: a list of tools as a language in which only calls of them can be written, in the model's own format.

In: a format, tools, what is asked for.   Out: a `Grammar` that knows its judge: what it allows is read back and checked as a call.
Knows nothing about: engines, tokenizers.
Invariants: a text of the grammar, read by the format's own parser, is calls without errors, except for what `partial` names.

Marks of a format are literal text in these grammars. Where a tokenizer has them as ordinary tokens (Qwen's <tool_call>) that is
what the model writes. Where it has them as control tokens (Llama's <|python_tag|>), which no constrained text can hold, the
grammar engine refuses by name; `call_grammar` leaves the frame out: a program writes it around the segment, as control tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolkit.contracts import Grammar, Report, require
from toolkit.errors import UnsupportedError
from toolkit.validate.tools.format import ToolFormat, literal
from toolkit.validate.tools.offered import ToolSet
from toolkit.validate.tools.stream import MOST_CALLS, tool_stream
from toolkit.validate.tools.table import format_named


def call_grammar(format: str, tools: Sequence[Mapping[str, Any]] | ToolSet) -> Grammar:  # noqa: A002
    """The body of one call of one of `tools`, what the format puts around it (`ToolFormat.frame`) left out.

    A valid text's value is `{"name": ..., "arguments": {...}}`. Raises UsageError, SchemaError, or UnsupportedError for what the
    format cannot write.
    """
    form, offered = format_named(format), ToolSet(tools)
    schema = form.schema(offered)
    kind, source = ("lark", f"start: call\n{form.rules(offered)}\n") if schema is None else ("json_schema", json.dumps(schema))
    return Grammar(
        "lark" if kind == "lark" else "json_schema",
        source,
        judge=_judge(form, offered, is_body=True),
        partial=form.partial(offered),
    )


def tools_grammar(
    format: str,  # noqa: A002
    tools: Sequence[Mapping[str, Any]] | ToolSet,
    *,
    choice: str = "required",
    parallel: int = 1,
) -> Grammar:
    """A whole turn of one to `parallel` calls, frames included. `choice`: "required", or the name of the one tool to call.

    A valid text's value is the list of its calls. Raises as `call_grammar`; UnsupportedError for the choices "auto" and "none":
    free text has no grammar, it is read by `tool_stream`.
    """
    form, offered = format_named(format), ToolSet(tools)
    if choice in ("auto", "none"):
        raise UnsupportedError(
            f"tool choice {choice!r} has no grammar: free text comes before the calls", hint="required, or a name"
        )
    require(choice == "required" or choice in offered, "tool choice", choice, ", ".join(("required", *offered)))
    require(
        isinstance(parallel, int) and 1 <= parallel <= MOST_CALLS, "parallel", parallel, f"an integer from 1 to {MOST_CALLS}"
    )
    offered = offered if choice == "required" else offered.only([choice])
    opening, closing = (literal(mark) if mark else "" for mark in form.frame)
    more = f" ({literal(form.between)} call){{0,{parallel - 1}}}" if parallel > 1 else ""
    source = f"start: {opening} call{more} {closing}\n{form.rules(offered)}\n"
    return Grammar("lark", source, judge=_judge(form, offered, is_body=False, parallel=parallel), partial=form.partial(offered))


def _judge(form: ToolFormat, tools: ToolSet, *, is_body: bool, parallel: int = 1) -> Callable[[str], Report]:
    before, after = form.frame if is_body else ("", "")

    def judge(text: str) -> Report:
        stream = tool_stream(form.name, tools, choice="required", parallel=parallel, reasoning="off")
        stream.feed((before + text + after).encode("utf-8", "surrogatepass"))
        result = stream.close()
        if result.errors:
            path = "/calls/0" if is_body else ""
            return Report(text, tuple(replace(each, path=each.path.removeprefix(path)) for each in result.errors))
        calls = [{"name": each.name, "arguments": each.arguments} for each in result.calls]
        return Report(calls[0] if is_body else calls)

    return judge
