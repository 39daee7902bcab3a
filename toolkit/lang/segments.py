"""Segments: the segment kinds of this toolkit beside SGLang's own `gen` and `select`.

`beam` decodes a constrained segment by beam search, `tool_call` one call of a given set of tools, `free` plain text. Each
returns a SGLang expression that queues, forks and streams as `sgl.gen` does; `result(state, name)` is what a beam found.

How a beam search rides through SGLang: the interpreter copies a fixed list of parameter fields, but their values as they
are, so the segment travels as the *value* of `json_schema`: a `str` that carries the search and its grammar. Its text is no
schema but a sentence, so a server behind a stock backend refuses the request with that sentence, and where a backend drops
`json_schema` unseen, `result` refuses, because only this toolkit's backend leaves a BeamResult.

Knows nothing about: engines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import sglang as sgl
from sglang.lang.interpreter import ProgramState
from sglang.lang.ir import SglArgument, SglExpr, SglGen

from toolkit.contracts import BeamParams, BeamResult, Grammar, Json, require
from toolkit.errors import UnsupportedError, UsageError
from toolkit.grammar.types import grammar_of
from toolkit.lang.checks import check_names
from toolkit.lang.tools import Tool, tool_set, tools_schema
from toolkit.schema import load_schema
from toolkit.validate.check import Validator
from toolkit.validate.tools.grammar import call_grammar
from toolkit.validate.tools.table import format_named

NOT_FREE = ("regex", "json_schema", "dtype", "choices", "choices_method")


class Segment(str):
    """A beam search and its grammar, in the shape of a string. `grammar` None is open text; `beam` None is text without a drafter."""

    beam: BeamParams | None
    grammar: Grammar | None

    def __new__(cls, beam: BeamParams | None, grammar: Grammar | None) -> Segment:
        kinds = "beam, tool_call" if beam is not None else "free with speculate=False"
        segment = super().__new__(cls, f"a segment of sgl-toolkit ({kinds}): run it on toolkit.lang.EmbeddedBackend")
        segment.beam = beam
        segment.grammar = grammar
        return segment


class BeamMeta(dict[str, Json]):
    """What `state.get_meta_info(name)["beam"]` holds: JSON-able fields, and the whole `result`."""

    def __init__(self, fields: Mapping[str, Json], result: BeamResult) -> None:
        super().__init__(fields)
        self.result = result


def beam(
    name: str,
    *,
    schema: object | None = None,
    regex: str | re.Pattern[str] | None = None,
    grammar: Grammar | str | None = None,
    choices: Sequence[str] | None = None,
    width: int = 4,
    alpha: float = 1.0,
    penalty: Literal["length", "gnmt"] = "length",
    n: int | None = None,
    groups: int = 1,
    diversity: float = 0.0,
    max_tokens: int = 256,
) -> SglGen:
    """A segment decoded by constrained beam search: the best *valid* of `width` hypotheses, with the alternatives.

    The language is one of `schema` (a JSON Schema, a pydantic model or other Python type, or the name or path of a schema
    file), `regex`, `grammar` (Lark text or a Grammar) and `choices`; none of them is open text, where beams collapse into
    near-duplicates and `free` is the better choice. The search's parameters are those of `contracts.BeamParams`; the
    sampling defaults of `run()` do not touch it. `state[name]` is the text, `result(state, name)` the rest.

    Raises UsageError for a parameter and SchemaError for a language here, where the program is built. What only an engine can
    know - a Lark grammar that does not compile, a schema that its masks cannot hold, NoValidError - surfaces from the state.
    """
    _named("beam", name)
    if any(isinstance(value, SglArgument) for value in (schema, regex, grammar, choices)):
        return sgl.gen(name)  # SGLang is tracing the program for its constant prefix: values are not known yet
    params = BeamParams(
        width=width, alpha=alpha, penalty=penalty, n=n, groups=groups, diversity=diversity, max_tokens=max_tokens
    )  # fmt: skip
    return sgl.gen(name, json_schema=Segment(params, _language(schema, regex, grammar, choices)))


def free(name: str, *, speculate: bool = True, **sampling: Any) -> SglGen:
    """A segment of free text: parameters as `sgl.gen` takes them, constraints excepted.

    Where the engine has a drafter it guesses ahead, here as in every sampled segment, and the text stays what it would have been;
    `speculate=False` decodes this segment without it. What it gave is in `state.get_meta_info(name)["toolkit"]["usage"]`.
    Raises UsageError here for a parameter that there is not; values, which `run()` has a part in, are checked by the engine's
    backend, and a refusal surfaces from the state.
    """
    _named("free", name)
    check_names("free", sgl.gen, (name,), sampling)
    require(isinstance(speculate, bool), f"free({name!r}): speculate", speculate, "True or False")
    constraints = [key for key in NOT_FREE if sampling.get(key) is not None]
    if constraints:
        raise UsageError(f"free({name!r}) with {', '.join(constraints)} is not allowed", hint="use beam() for constrained text")
    return sgl.gen(name, **(sampling if speculate else {**sampling, "json_schema": Segment(None, None)}))


def tool_call(
    name: str,
    tools: Sequence[Tool],
    *,
    format: str | None = None,  # noqa: A002 - as in toolkit.tool_stream
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
    Raises UsageError for malformed tools, SchemaError for their schemas, UnsupportedError for what the format cannot write, here; a
    mark inside the call that is a control token of the model is refused from the state; the rest is as with `beam`.
    """
    _named("tool_call", name)
    before, after = ("", "") if format is None else format_named(format).frame
    if isinstance(tools, SglArgument):
        call: SglExpr = sgl.gen(name)
    elif format is None:
        call = beam(name, schema=tools_schema(tools), width=width, alpha=alpha, penalty=penalty, n=n, max_tokens=max_tokens)
    else:
        grammar = call_grammar(format, tool_set(tools))
        call = beam(name, grammar=grammar, width=width, alpha=alpha, penalty=penalty, n=n, max_tokens=max_tokens)
    return before + call + after if before or after else call


def result(state: ProgramState, name: str) -> BeamResult:
    """What the beam search of segment `name` found; waits for it, and raises its error if it failed.

    UsageError if the program has no such segment, UnsupportedError if it was not decoded by this toolkit.
    """
    meta = state.get_meta_info(name)
    if meta is None and state.error() is not None:
        raise state.error()
    if meta is None:
        raise UsageError(f"segment {name!r} is unknown", hint=f"the program has {', '.join(_names(state)) or 'no segments'}")
    found = meta.get("beam") if isinstance(meta, dict) else None
    if not isinstance(found, BeamMeta):
        raise UnsupportedError(
            f"segment {name!r} was not decoded by a beam search of this toolkit",
            hint="write it with beam() or tool_call() and run the program on toolkit.lang.EmbeddedBackend or Endpoint",
        )
    return found.result


def _named(kind: str, name: object) -> None:
    require(isinstance(name, str) and name != "", f"{kind}: name", name, "a non-empty string: the segment's name")


def _names(state: ProgramState) -> list[str]:
    return sorted(str(name) for name in state.stream_executor.variable_event)


def _language(
    schema: object | None, regex: str | re.Pattern[str] | None, grammar: Grammar | str | None, choices: Sequence[str] | None
) -> Grammar | None:
    given = {"schema": schema, "regex": regex, "grammar": grammar, "choices": choices}
    named = [key for key, value in given.items() if value is not None]
    if len(named) > 1:
        raise UsageError(f"beam with {' and '.join(named)} is not allowed: give one language", hint="or none, for open text")
    language = _grammar(schema, regex, grammar, choices)
    if language is not None:
        Validator(language)  # refuses a schema, regex or list of choices that is none
    return language


def _grammar(schema: object, regex: object, grammar: Grammar | str | None, choices: object) -> Grammar | None:
    if schema is not None:
        return grammar_of(load_schema(schema) if isinstance(schema, str) else schema)
    if regex is not None:
        return grammar_of(regex, kind="regex")
    if choices is not None:
        require(not isinstance(choices, str), "choices", choices, "a non-empty list of strings")
        return grammar_of(choices, kind="choices")
    return None if grammar is None else grammar if isinstance(grammar, Grammar) else grammar_of(grammar, kind="lark")
