"""Front: the one-request conveniences that every engine offers, built on `generate` alone.

`complete` is one sampled text, `beam` one constrained beam search. Errors of the request are raised, not returned.
Knows nothing about: how an engine runs requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from toolkit.contracts import (
    BeamParams,
    BeamResult,
    Completion,
    Event,
    Grammar,
    Json,
    Prompt,
    Request,
    SamplingParams,
    Tokenizer,
    Watch,
)
from toolkit.engine.watch import Checks, judged
from toolkit.errors import UsageError
from toolkit.grammar.types import grammar_of
from toolkit.results import only_result


def grammar_from(
    *,
    schema: object = None,
    regex: str | None = None,
    grammar: Grammar | str | None = None,
    choices: Sequence[str] | None = None,
) -> Grammar | None:
    """At most one of: a schema (JSON Schema, pydantic model, any Python type), a regex, a Grammar or Lark text, choices."""
    given = [
        name
        for name, value in (("schema", schema), ("regex", regex), ("grammar", grammar), ("choices", choices))
        if value is not None
    ]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} are given: a segment has one grammar at most")
    if schema is not None:
        return grammar_of(schema)
    if regex is not None:
        return grammar_of(regex, kind="regex")
    if choices is not None:
        return grammar_of(list(choices))
    if isinstance(grammar, str):
        return grammar_of(grammar, kind="lark")
    return grammar


class Front:
    """Mixin over `generate`."""

    tokenizer: Tokenizer

    def generate(self, requests: Iterable[Request]) -> Iterator[Event]:
        raise NotImplementedError

    def complete(
        self,
        prompt: Prompt,
        *,
        schema: object = None,
        regex: str | None = None,
        grammar: Grammar | str | None = None,
        choices: Sequence[str] | None = None,
        watch: Watch | None = None,
        **sampling: Any,
    ) -> Completion:
        """One text; `watch` says what it has to be without a mask that makes it so. Keywords are those of SamplingParams; n > 1 needs `generate`."""
        params = SamplingParams(**_known(SamplingParams, sampling))
        if params.n != 1:
            raise UsageError(f"n = {params.n}: complete returns one text", hint="use generate([Request(...)]) for several")
        found = grammar_from(schema=schema, regex=regex, grammar=grammar, choices=choices)
        request = Request(prompt=prompt, sampling=params, grammar=found, watch=watch)
        result = self._one(request)
        assert isinstance(result, Completion)
        if watch is None or result.valid is not None:
            return result
        return judged(Checks.of(request), result, self.tokenizer)  # an engine that leaves it to us

    def beam(
        self,
        prompt: Prompt,
        *,
        schema: Json | type | object = None,
        regex: str | None = None,
        grammar: Grammar | str | None = None,
        choices: Sequence[str] | None = None,
        width: int = 4,
        alpha: float = 1.0,
        penalty: Literal["length", "gnmt"] = "length",
        n: int | None = None,
        groups: int = 1,
        diversity: float = 0.0,
        max_tokens: int = 256,
    ) -> BeamResult:
        """Constrained beam search: the best valid hypothesis and its alternatives. Raises NoValidError if none is valid."""
        params = BeamParams(
            width=width, alpha=alpha, penalty=penalty, n=n, groups=groups, diversity=diversity, max_tokens=max_tokens
        )
        found = grammar_from(schema=schema, regex=regex, grammar=grammar, choices=choices)
        result = self._one(Request(prompt=prompt, beam=params, grammar=found))
        assert isinstance(result, BeamResult)
        return result

    def _one(self, request: Request) -> Completion | BeamResult:
        return only_result(self.generate([request]))


def _known(record: type, given: dict[str, Any]) -> dict[str, Any]:
    allowed = record.__dataclass_fields__  # type: ignore[attr-defined]
    unknown = sorted(set(given) - set(allowed))
    if unknown:
        raise UsageError(f"{unknown[0]} is not a parameter of {record.__name__}: known are {', '.join(sorted(allowed))}")
    return given
