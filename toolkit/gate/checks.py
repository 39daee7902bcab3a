"""Checks: what must hold of the answers to a canary, whoever gave them. One function a kind, one row in CHECKS.

In: what was asked and what came, the check's own table, the tokenizer.   Out: "" or why it does not hold.
Knows nothing about: engines, the other arm.
Invariants: no answer, whatever it holds, raises anything.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolkit.contracts import Completion, Grammar, Request, Tokenizer
from toolkit.engine.repeats import repetition
from toolkit.errors import ToolkitError, UnsupportedError
from toolkit.gate.sandbox import run
from toolkit.schema import parse_json
from toolkit.validate.check import Validator
from toolkit.validate.tools.stream import tool_stream

Told = Mapping[str, Any]
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
_SHOWN = 60


def exact(request: Request, result: Completion, told: Told, tokenizer: Tokenizer) -> str:
    return "" if result.text.strip() == told["text"] else f"{_short(result.text)} is not {told['text']!r}"


def begins(request: Request, result: Completion, told: Told, tokenizer: Tokenizer) -> str:
    return "" if result.text.strip().startswith(told["text"]) else f"{_short(result.text)} does not begin with {told['text']!r}"


def contains(request: Request, result: Completion, told: Told, tokenizer: Tokenizer) -> str:
    return "" if told["text"].lower() in result.text.lower() else f"{_short(result.text)} does not contain {told['text']!r}"


def one_of(request: Request, result: Completion, told: Told, tokenizer: Tokenizer) -> str:
    return "" if result.text in told["texts"] else f"{_short(result.text)} is none of {', '.join(told['texts'])}"


def json_value(request: Request, result: Completion, told: Told, tokenizer: Tokenizer) -> str:
    """A JSON text, of the schema that was asked for, of `value` where one is told; what stands up to `after` is left out."""
    _before, mark, text = result.text.rpartition(told["after"]) if "after" in told else ("", "after", result.text)
    if not mark:
        return f"{_short(result.text)} has no {told['after']!r}"
    try:
        if request.grammar is not None and request.grammar.kind == "json_schema":
            report = Validator(Grammar("json_schema", request.grammar.source)).check(text)
            if not report.valid:
                return f"{report.violations[0].path or 'the root'}: {report.violations[0].message}"
        value = parse_json(text.strip().encode("utf-8", "replace"))
    except ToolkitError as error:
        return f"no JSON: {error.message}"
    return "" if "value" not in told or value == json.loads(told["value"]) else f"{_short(text)} is another value"


def calls(request: Request, result: Completion, told: Told, tokenizer: Tokenizer) -> str:
    """Calls without errors: `least` of them, or exactly those of `names`."""
    stream = tool_stream(told["format"], json.loads(told["tools"]))
    stream.feed(result.text.encode("utf-8", "replace"))
    found = stream.close()
    if found.errors:
        return f"a call is not allowed: {found.errors[0].message}"
    names = [call.name for call in found.calls]
    if "names" in told and names != told["names"]:
        return f"called {', '.join(names) or 'nothing'}, not {', '.join(told['names'])}"
    return "" if len(names) >= told.get("least", 0) else f"{len(names)} calls, {told['least']} at least"


def code(request: Request, result: Completion, told: Told, tokenizer: Tokenizer) -> str:
    """Python that parses and passes `tests`: what stands in the first fence, or the whole text."""
    fence = _FENCE.search(result.text)
    source = fence[1] if fence else result.text
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"the code does not parse: {error}"
    return run(source, told["tests"])


def stop(request: Request, result: Completion, told: Told, tokenizer: Tokenizer) -> str:
    """No stop string in the text, and where one ended it, it stands right behind it in the tokens and nowhere earlier."""
    for each in request.sampling.stop:
        if each in result.text:
            return f"the stop string {each!r} is in the text"
    whole = _spelled(result, tokenizer)
    if whole is None or result.finish_reason != "stop" or not isinstance(result.matched_stop, str):
        return (
            "" if whole is None or result.finish_reason != "length" or result.text == whole else "the text is not its tokens'"
        )
    return (
        "" if whole.startswith(result.text + result.matched_stop) else f"the text does not end before {result.matched_stop!r}"
    )


def banned(request: Request, result: Completion, told: Told, tokenizer: Tokenizer) -> str:
    ids = {tokenizer.encode(text)[0] for text in told["texts"]}
    at = next((i for i, token in enumerate(result.token_ids) if token in ids), None)
    return "" if at is None else f"token {at} is {result.token_ids[at]}, whose bias is -100"


def length(request: Request, result: Completion, told: Told, tokenizer: Tokenizer) -> str:
    count = result.usage.output_tokens
    return "" if count == request.sampling.max_tokens else f"{count} tokens, {request.sampling.max_tokens} were asked for"


def ends_after(request: Request, result: Completion, told: Told, tokenizer: Tokenizer) -> str:
    """Exactly min_tokens tokens and an end token, whose bias makes it the likeliest as soon as it may come."""
    ids = result.token_ids
    least = request.sampling.min_tokens
    early = next((i for i, token in enumerate(ids) if token in tokenizer.eos_ids), None)
    return "" if early == least == len(ids) - 1 else f"the end came at token {early} of {len(ids)}, not at {least}"


def whole_characters(request: Request, result: Completion, told: Told, tokenizer: Tokenizer) -> str:
    if "\ufffd" in result.text:
        return "a character was cut: the text holds U+FFFD"
    return "" if _spelled(result, tokenizer) in (None, result.text) else "the text is not its tokens'"


def _spelled(result: Completion, tokenizer: Tokenizer) -> str | None:
    """The text that its tokens are; None where the engine tells no tokens, or not what they are spelled like."""
    try:
        return tokenizer.decode(result.token_ids) if result.token_ids else None
    except UnsupportedError:
        return None


def varied(request: Request, result: Completion, told: Told, tokenizer: Tokenizer) -> str:
    share = repetition(result.token_ids or [hash(word) for word in result.text.split()])
    return "" if share <= told["most"] else f"{share:.0%} of the text repeats itself"


Check = Callable[[Request, Completion, Told, Tokenizer], str]
CHECKS: Mapping[str, Check] = {
    "exact": exact, "begins": begins, "contains": contains, "one_of": one_of, "json": json_value, "calls": calls, "code": code,
    "stop": stop, "banned": banned, "length": length, "ends_after": ends_after, "whole_characters": whole_characters,
    "varied": varied,
}  # fmt: skip


def same(results: Mapping[int, Completion], asks: Sequence[int]) -> str:
    """All of these answers are one text."""
    first = results[asks[0]]
    for each in asks[1:]:
        if (results[each].token_ids, results[each].text) != (first.token_ids, first.text):
            return f"answer {each} is not answer {asks[0]}: {_short(results[each].text)}, {_short(first.text)}"
    return ""


def different(results: Mapping[int, Completion], asks: Sequence[int]) -> str:
    """These answers are not all one text."""
    return "all of the answers are one text" if not same(results, asks) else ""


ACROSS: Mapping[str, Callable[[Mapping[int, Completion], Sequence[int]], str]] = {"same": same, "different": different}


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
