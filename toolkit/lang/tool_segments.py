"""Tool segments: one call of a given set of tools, by beam search or written ahead by the drafter.

Knows nothing about: engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import sglang as sgl
from sglang.lang.ir import SglArgument, SglExpr

from toolkit.contracts import Grammar, require
from toolkit.engine.guard import Policy, check_policies
from toolkit.errors import UsageError
from toolkit.grammar.types import grammar_of
from toolkit.lang.segments import Segment, beam, check_name
from toolkit.lang.tools import Tool, tool_set, tools_schema
from toolkit.validate.tools.grammar import call_grammar
from toolkit.validate.tools.table import format_named


def tool_call(
    name: str,
    tools: Sequence[Tool],
    *,
    format: str | None = None,  # noqa: A002 - as in toolkit.tool_stream
    speculate: bool = False,
    policies: Sequence[Policy] = (),
    width: int = 4,
    alpha: float = 1.0,
    penalty: Literal["length", "gnmt"] = "length",
    n: int | None = None,
    max_tokens: int = 256,
) -> SglExpr:
    """One call of one of `tools`, decoded by beam search: `result(state, name).value` is `{"name": ..., "arguments": {...}}`.

    `tools` are OpenAI-style function schemas or Python functions with annotated parameters. Without a `format` the text is that
    JSON object and nothing around it. With one (hermes, llama3, mistral, qwen3_coder, glm45, deepseek) the call is written as
    models of that family do: its frame, such as `<tool_call>` tags, is text of the program, so control tokens may be in it;
    `state[name]` is what stands inside. `toolkit.validate.tools.table.format_of_template` tells a chat template's format.
    speculate: the same language, but the likeliest token each time, ahead of which the engine's drafter guesses, and read while it
    comes as a watched `free` segment is: faster, without alternatives; `completion(state, name)` is what was found. `policies`
    belong to it, the parameters of a beam search do not.
    For a turn that may or may not call, use `free` with `watch(tools=..., format=...)`.
    Raises UsageError for malformed tools, SchemaError for their schemas, UnsupportedError for what the format cannot write, here; a
    mark inside the call that is a control token of the model is refused from the state; the rest is as with `beam` or `free`.
    """
    check_name("tool_call", name)
    require(isinstance(speculate, bool), f"tool_call({name!r}): speculate", speculate, "True or False")
    _check_kind(name, speculate, policies, beams=(width, alpha, penalty, n) != (4, 1.0, "length", None))
    before, after = ("", "") if format is None else format_named(format).frame
    if isinstance(tools, SglArgument):
        call: SglExpr = sgl.gen(name)
    elif speculate:
        segment = Segment(grammar=_language(tools, format), policies=tuple(policies))
        call = sgl.gen(name, json_schema=segment, temperature=0.0, max_tokens=max_tokens)
    else:
        language = _language(tools, format)
        call = beam(name, grammar=language, width=width, alpha=alpha, penalty=penalty, n=n, max_tokens=max_tokens)
    return before + call + after if before or after else call


def _check_kind(name: str, speculate: bool, policies: Sequence[Policy], *, beams: bool) -> None:
    check_policies(policies)
    if speculate and beams:
        raise UsageError(
            f"tool_call({name!r}, speculate=True): width, alpha, penalty and n are those of a beam search, which it is not"
        )
    if policies and not speculate:
        raise UsageError(f"tool_call({name!r}): policies say nothing of a beam search", hint="speculate=True")
    if "constrained" in policies:
        raise UsageError(f"tool_call({name!r}): a call is constrained already", hint='the policies "plain" and "ask"')


def _language(tools: Sequence[Tool], format_: str | None) -> Grammar:
    return grammar_of(tools_schema(tools)) if format_ is None else call_grammar(format_, tool_set(tools))
