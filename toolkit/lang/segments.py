"""Segments: the segment kinds of this toolkit beside SGLang's own `gen` and `select`.

`beam` decodes a constrained segment by beam search, `free` plain text, watched where it has to be something; `tool_call` is in a
file of its own. Each returns a SGLang expression that queues, forks and streams as `sgl.gen` does; `result(state, name)` is what a
beam found, `completion(state, name)` what was sampled.

How a beam search rides through SGLang: the interpreter copies a fixed list of parameter fields, but their values as they
are, so the segment travels as the *value* of `json_schema`: a `str` that carries the search and its grammar. Its text is no
schema but a sentence, so a server behind a stock backend refuses the request with that sentence, and where a backend drops
`json_schema` unseen, `result` refuses, because only this toolkit's backend leaves a BeamResult.

Knows nothing about: engines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import sglang as sgl
from sglang.lang.ir import SglArgument, SglGen

from toolkit.contracts import BeamParams, Grammar, Request, Watch, require
from toolkit.engine.guard import Policy, check_policies
from toolkit.engine.watch import Checks
from toolkit.errors import UsageError
from toolkit.grammar.types import grammar_of
from toolkit.lang.checks import check_names
from toolkit.schema import load_schema
from toolkit.validate.check import Validator

NOT_FREE = ("regex", "json_schema", "dtype", "choices", "choices_method")


class Segment(str):
    """A beam search and its grammar, or what a sampled text asks for beyond SGLang's parameters, in the shape of a string.

    `beam` None is sampled text; `grammar` None is open text; the rest is as in `free`.
    """

    beam: BeamParams | None
    grammar: Grammar | None
    speculate: bool
    watch: Watch | None
    policies: tuple[Policy, ...]
    keep_invalid: bool

    def __new__(
        cls,
        beam: BeamParams | None = None,
        grammar: Grammar | None = None,
        *,
        speculate: bool = True,
        watch: Watch | None = None,
        policies: tuple[Policy, ...] = (),
        keep_invalid: bool = False,
    ) -> Segment:
        kinds = "beam, tool_call" if beam is not None or grammar is not None else "free with a watch or speculate=False"
        segment = super().__new__(cls, f"a segment of sgl-toolkit ({kinds}): run it on toolkit.lang.EmbeddedBackend")
        segment.beam, segment.grammar, segment.speculate = beam, grammar, speculate
        segment.watch, segment.policies, segment.keep_invalid = watch, policies, keep_invalid
        return segment


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
    check_name("beam", name)
    if any(isinstance(value, SglArgument) for value in (schema, regex, grammar, choices)):
        return sgl.gen(name)  # SGLang is tracing the program for its constant prefix: values are not known yet
    params = BeamParams(
        width=width, alpha=alpha, penalty=penalty, n=n, groups=groups, diversity=diversity, max_tokens=max_tokens
    )  # fmt: skip
    return sgl.gen(name, json_schema=Segment(params, _language(schema, regex, grammar, choices)))


def free(
    name: str,
    *,
    speculate: bool = True,
    watch: Watch | None = None,
    policies: Sequence[Policy] = (),
    keep_invalid: bool = False,
    **sampling: Any,
) -> SglGen:
    """A segment of free text: parameters as `sgl.gen` takes them, constraints excepted.

    Where the engine has a drafter it guesses ahead, here as in every sampled segment, and the text stays what it would have been;
    `speculate=False` decodes this segment without it. What it gave is in `completion(state, name)`.
    watch (see `toolkit.lang.watch`): what the text has to be. It is read while it comes, and where it cannot become that any more the
    target reads it again without speculation. A text that is not valid at its end is tried again as `policies` say (see
    `toolkit.guarded`; such a segment streams as one piece), and ends the program in NoValidError, or in TruncatedError where it was
    cut off, unless `keep_invalid`: then `completion(state, name)` says what is wrong with it.
    Raises UsageError here for a parameter that there is not, SchemaError for a watch that cannot be watched; values, which `run()`
    has a part in, are checked by the engine's backend, and a refusal surfaces from the state.
    """
    check_name("free", name)
    check_names("free", sgl.gen, (name,), sampling)
    require(isinstance(speculate, bool), f"free({name!r}): speculate", speculate, "True or False")
    require(isinstance(keep_invalid, bool), f"free({name!r}): keep_invalid", keep_invalid, "True or False")
    constraints = [key for key in NOT_FREE if sampling.get(key) is not None]
    if constraints:
        raise UsageError(f"free({name!r}) with {', '.join(constraints)} is not allowed", hint="use beam() for constrained text")
    if watch is None and (policies or keep_invalid):
        raise UsageError(
            f"free({name!r}): policies and keep_invalid say nothing without a watch", hint="watch=watch(schema=...)"
        )
    if watch is not None:
        Checks.of(Request(prompt="", watch=watch))  # refuses one that cannot be watched
        check_policies(policies)
    if speculate and watch is None:
        return sgl.gen(name, **sampling)
    segment = Segment(speculate=speculate, watch=watch, policies=tuple(policies), keep_invalid=keep_invalid)
    return sgl.gen(name, **{**sampling, "json_schema": segment})


def check_name(kind: str, name: object) -> None:
    """UsageError unless `name` can name a segment."""
    require(isinstance(name, str) and name != "", f"{kind}: name", name, "a non-empty string: the segment's name")


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
