"""Checks: what a program writes into `gen`, `select` and `beam`, judged before SGLang reads it in its own way.

SGLang's `gen` takes an empty list of choices for no constraint at all and a string for a list of its letters, and what it does
refuse it refuses with Python's own errors. `checked(gen)` is the same function with these cases refused by name.
Knows nothing about: engines, programs.
Invariants: what SGLang takes in as it was meant is passed on untouched. Choices and regexes that are arguments of a program whose
constant prefix is being traced (SglArgument) have no value yet: SGLang fails over them, here the segment is traced without.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sglang.lang.ir import SglArgument

from toolkit.contracts import require
from toolkit.errors import SchemaError, UsageError

T = TypeVar("T")


def check_choices(choices: object) -> None:
    """UsageError unless `choices` is a list of texts to choose among."""
    listed = isinstance(choices, Sequence) and not isinstance(choices, str | bytes)
    ok = listed and len(choices) > 0 and all(isinstance(choice, str) and choice for choice in choices)  # type: ignore[arg-type, attr-defined]
    require(ok, "choices", choices, "a non-empty list of non-empty strings")


def check_names(kind: str, function: Callable[..., Any], args: Sequence[Any], named: dict[str, Any]) -> inspect.BoundArguments:
    """The arguments of a call of SGLang's `function`; UsageError, with the names there are, where they do not fit it."""
    signature = inspect.signature(function)
    try:
        return signature.bind(*args, **named)
    except TypeError as error:
        raise UsageError(f"{kind}: {error}", hint=f"known are {', '.join(signature.parameters)}") from None


def checked(gen: Callable[..., T]) -> Callable[..., T]:
    """SGLang's `gen`, which then raises UsageError for choices that are none and SchemaError for a regex that is none."""

    @functools.wraps(gen)
    def checked_gen(*args: Any, **named: Any) -> T:
        asked = check_names("gen", gen, args, named).arguments
        choices, regex = asked.get("choices"), asked.get("regex")
        if isinstance(choices, SglArgument) or isinstance(regex, SglArgument):
            return gen(asked.get("name"))
        if choices is not None:
            check_choices(choices)
        try:
            return gen(*args, **named)
        except (re.error, RecursionError, OverflowError) as error:
            raise SchemaError(f"gen: regex {regex!r:.200} is no regular expression: {error}", keyword="regex") from None

    return checked_gen
