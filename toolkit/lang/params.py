"""Params: a SGLang segment's sampling parameters as one request of this toolkit.

In: `SglSamplingParams` as the interpreter resolved them.   Out: `Asked`: the request's parts and what to report.
SGLang's defaults stay SGLang's: temperature 1.0, 128 new tokens, top_k -1 for off. A field that is set and has no
counterpart here is refused by name, fields of a later SGLang included; none is dropped.

Knows nothing about: engines, the program's text.
Source: sglang 0.5.23 `lang/ir.py` (fields), `lang/backend/runtime_endpoint.py` (data types as regexes and stops).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sglang.lang.ir import REGEX_BOOL, REGEX_FLOAT, REGEX_INT, REGEX_STR, SglSamplingParams

from toolkit.contracts import BeamParams, Grammar, SamplingParams, Watch, require
from toolkit.engine.guard import Policy
from toolkit.errors import UnsupportedError, UsageError
from toolkit.grammar.types import grammar_of
from toolkit.lang.segments import Segment
from toolkit.schema import parse_json

GREEDY_BELOW = 1e-6  # SGLang's server takes a smaller temperature as greedy
NUMBER_ENDS = (" ", "\n")  # a number ends where white space begins
# data type -> (regex, stop strings); the type or its name may be given
DTYPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "int": (REGEX_INT, NUMBER_ENDS),
    "float": (REGEX_FLOAT, NUMBER_ENDS),
    "str": (REGEX_STR, ()),
    "bool": (REGEX_BOOL, ()),
}
KNOWN = frozenset(
    ["max_new_tokens", "min_new_tokens", "n", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p",
     "frequency_penalty", "presence_penalty", "ignore_eos", "return_logprob", "logprob_start_len", "top_logprobs_num",
     "return_text_in_logprobs", "json_schema", "dtype", "regex"]
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One segment's request without its prompt. `input_logprobs_from` is a prompt position, None = none are wanted.

    `keep_invalid`: a text that is not valid is the segment's text all the same, as `sgl.gen` has it under a constraint.
    """

    sampling: SamplingParams
    beam: BeamParams | None = None
    grammar: Grammar | None = None
    speculate: bool = True
    watch: Watch | None = None
    policies: tuple[Policy, ...] = ()
    keep_invalid: bool = True
    input_logprobs_from: int | None = None
    logprob_text: bool = False


def ask(params: SglSamplingParams, *, end_ids: tuple[int, ...] = ()) -> Asked:
    """The request that `params` describe; `end_ids` end a turn beside the model's own end tokens.

    A segment of this toolkit (`beam`, `tool_call`) brings its own parameters: the defaults given to `run()` are how the
    sampled segments of a program are drawn, and no beam search draws. Raises UsageError and UnsupportedError.
    """
    _refuse_unknown(params)
    segment = params.json_schema if isinstance(params.json_schema, Segment) else None
    if segment is not None and segment.beam is not None:
        return Asked(sampling=SamplingParams(), beam=segment.beam, grammar=segment.grammar)
    grammar, dtype_stop = _grammar(params) if segment is None else (segment.grammar, ())
    logprobs, start = _logprobs(params)
    sampling = SamplingParams(
        temperature=0.0 if _is_number(params.temperature) and 0 <= params.temperature < GREEDY_BELOW else params.temperature,
        top_k=_top_k(params.top_k),
        top_p=params.top_p,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        stop=(*_strings("stop", params.stop), *dtype_stop),
        stop_ids=(*_token_ids(params.stop_token_ids), *end_ids),
        ignore_eos=params.ignore_eos,
        min_tokens=params.min_new_tokens,
        max_tokens=params.max_new_tokens,
        n=params.n,
        logprobs=logprobs,
    )
    return Asked(
        sampling=sampling,
        grammar=grammar,
        speculate=segment is None or segment.speculate,
        watch=segment.watch if segment is not None else None,
        policies=segment.policies if segment is not None else (),
        keep_invalid=segment is None or segment.keep_invalid,
        input_logprobs_from=start,
        logprob_text=bool(params.return_text_in_logprobs),
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _refuse_unknown(params: SglSamplingParams) -> None:
    for item in dataclasses.fields(params):
        value = getattr(params, item.name)
        if item.name not in KNOWN and value != item.default:
            raise UnsupportedError(f"sampling parameter {item.name} = {value!r} is not supported by this backend")
    if _strings("stop_regex", params.stop_regex):
        raise UnsupportedError(
            f"stop_regex = {params.stop_regex!r} is not supported by this backend",
            hint="use stop= with plain strings, or regex= for what the segment may hold",
        )


def _grammar(params: SglSamplingParams) -> tuple[Grammar | None, tuple[str, ...]]:
    """The one constraint among dtype, regex and json_schema, and the stop strings that a data type brings."""
    given = [name for name in ("dtype", "regex", "json_schema") if getattr(params, name) is not None]
    if len(given) > 1:
        raise UsageError(f"a segment with {' and '.join(given)} is not allowed: give one constraint")
    if params.dtype is not None:
        name = params.dtype.__name__ if isinstance(params.dtype, type) else params.dtype
        require(name in DTYPES, "dtype", params.dtype, "int, float, str or bool, as a type or by name")
        regex, stop = DTYPES[name]
        return grammar_of(regex, kind="regex"), stop
    if params.regex is not None:
        require(isinstance(params.regex, str), "regex", params.regex, "a string")
        return grammar_of(params.regex, kind="regex"), ()
    if params.json_schema is not None:
        require(isinstance(params.json_schema, str), "json_schema", params.json_schema, "the schema as JSON text")
        return grammar_of(parse_json(params.json_schema), kind="json_schema"), ()
    return None, ()


def _logprobs(params: SglSamplingParams) -> tuple[int | None, int | None]:
    """(log-probabilities a token, first prompt position to report or None)."""
    top, start = params.top_logprobs_num or 0, params.logprob_start_len
    if not params.return_logprob:
        for name in ("top_logprobs_num", "logprob_start_len", "return_text_in_logprobs"):
            if getattr(params, name) not in (None, 0, -1, False):
                raise UsageError(f"{name} = {getattr(params, name)!r} is not allowed without return_logprob=True")
        return None, None
    require(isinstance(top, int) and top >= 0, "top_logprobs_num", top, "an integer >= 0")
    require(start is None or (isinstance(start, int) and start >= -1), "logprob_start_len", start, "an integer >= -1")
    if start is None or start == -1:
        return top, None
    if top:
        raise UnsupportedError(
            f"top_logprobs_num = {top} together with logprob_start_len = {start} is not supported by this backend",
            hint="the prompt's tokens come with their own log-probability only",
        )
    return top, start


def _top_k(value: object) -> int:
    require(
        isinstance(value, int) and not isinstance(value, bool) and (value == -1 or value >= 1),
        "top_k", value, "-1 (off) or an integer >= 1",
    )  # fmt: skip
    return 0 if value == -1 else int(str(value))


def _strings(name: str, value: str | Sequence[str] | None) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else () if value is None else value
    ok = isinstance(strings, list | tuple) and all(isinstance(s, str) and s for s in strings)
    require(ok, name, value, "a non-empty string or a list of them")
    return tuple(dict.fromkeys(strings))


def _token_ids(value: Sequence[int] | None) -> tuple[int, ...]:
    ids = () if value is None else value
    ok = isinstance(ids, list | tuple) and all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids)
    require(ok, "stop_token_ids", value, "a list of token ids >= 0")
    return tuple(ids)
