"""Types: what people write to say which output they want, as a `Grammar`.

In: a JSON schema, pydantic model, dataclass, TypedDict, Enum, Literal, builtin or generic type, function, list of choices,
`re.Pattern` or Outlines type.   Out: `Grammar`, with the Python type for the validator where there is one.
Knows nothing about: tokenizers, mask engines.
Invariants: property order is the author's; what cannot be expressed is refused by name; no code of the source runs.
Source: pydantic's JSON Schema of types; Outlines 1.x `outlines.types`. Departure: objects made from Python types are closed
(no keys beyond the declared ones, which pydantic would drop anyway) unless the type itself allows more (`extra="allow"`).
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from enum import Enum
from typing import Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

from toolkit.contracts import Grammar, GrammarKind, Json
from toolkit.errors import UnsupportedError, UsageError
from toolkit.schema import subschemas

_KINDS = ("json_schema", "regex", "lark", "choices")
_FLAGS = {re.IGNORECASE: "i", re.DOTALL: "s", re.MULTILINE: "m", re.VERBOSE: "x"}


def grammar_of(source: object, *, kind: GrammarKind | None = None) -> Grammar:
    """The grammar of `source`; a plain string needs its `kind`. Raises UsageError for what is no description of an output.

    Types, Enum and Literal give JSON (a string in quotes); with `kind="choices"` an Enum or Literal of strings gives bare text.
    """
    if kind is not None and kind not in _KINDS:
        raise UsageError(f"grammar kind {kind!r} is unknown: known are {', '.join(_KINDS)}")
    grammar = _grammar(source, kind)
    if kind not in (None, grammar.kind):
        raise UsageError(f"{_named(source)} is a {grammar.kind}, not a {kind}: leave `kind` out")
    return grammar


def _grammar(source: object, kind: GrammarKind | None) -> Grammar:
    if isinstance(source, Grammar):
        return source
    if isinstance(source, str):
        return _text(source, kind)
    if isinstance(source, dict | bool):
        return Grammar("json_schema", _dumps(source))
    if isinstance(source, list | tuple):
        return _choices(list(source))
    if source is None:
        raise UsageError("None describes no output", hint="type(None) is the JSON value null")
    if kind == "choices":
        return _choices(_members(source))
    if isinstance(source, re.Pattern):
        return Grammar("regex", _inline_flags(source))
    if type(source).__module__.partition(".")[0] == "outlines":
        return _outlines(source)
    if inspect.isfunction(source) or inspect.ismethod(source):
        return _typed(_arguments(source))
    return _typed(source)


def _text(source: str, kind: GrammarKind | None) -> Grammar:
    if kind is None:
        raise UsageError(f"a grammar given as text needs its kind: one of {', '.join(_KINDS)}")
    return Grammar(kind, source)


def _choices(items: list[Any]) -> Grammar:
    if not items or not all(isinstance(each, str) for each in items):
        raise UsageError(f"choices = {items!r:.200} are not allowed: a non-empty list of strings")
    return Grammar("choices", _dumps(items))


def _members(source: object) -> list[Any]:
    if isinstance(source, type) and issubclass(source, Enum):
        return [member.value for member in source]
    if get_origin(source) is Literal:
        return list(get_args(source))
    raise UsageError(f"{_named(source)} gives no choices: a list of strings, an Enum or a Literal does")


def _inline_flags(pattern: re.Pattern[Any]) -> str:
    if isinstance(pattern.pattern, bytes):
        raise UnsupportedError("a regex over bytes is not supported: compile it from a string")
    rest = pattern.flags & ~re.UNICODE
    letters = "".join(letter for flag, letter in _FLAGS.items() if rest & flag)
    for flag in _FLAGS:
        rest &= ~flag
    if rest:
        raise UnsupportedError(
            f"regex flag {re.RegexFlag(rest)!r} is not supported: IGNORECASE, DOTALL, MULTILINE, VERBOSE are"
        )
    text: str = pattern.pattern
    return f"(?{letters}:{text})" if letters else text


def _outlines(source: object) -> Grammar:
    """An Outlines term. Its regexes go to the mask engine here, not through Outlines' own index (wrong for prefixes)."""
    try:
        from outlines.types import dsl
    except ImportError:
        raise UnsupportedError(
            f"Outlines type {_named(source)} is not supported with this version of outlines: 1.x has `outlines.types.dsl`"
        ) from None
    if isinstance(source, dsl.JsonSchema):
        if source.whitespace_pattern is not None:
            raise UnsupportedError("whitespace_pattern of an Outlines JsonSchema is not supported: JSON is written compactly")
        return Grammar("json_schema", str(source.schema))
    if isinstance(source, dsl.CFG):
        return Grammar("lark", str(source.definition))
    if isinstance(source, dsl.Choice) and all(isinstance(item, str) for item in source.items):
        return _choices(list(source.items))
    if isinstance(source, dsl.Term):
        return Grammar("regex", str(dsl.to_regex(source)))
    raise UnsupportedError(f"Outlines object {_named(source)} is not supported: output types (`outlines.types`) are")


def _arguments(function: Callable[..., Any]) -> object:
    """A model of a function's arguments; the function itself is never called."""
    from pydantic import ConfigDict, create_model

    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UnsupportedError(f"parameter {parameter} of {_named(function)} is not supported: named parameters are")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[name] = (hints.get(name, Any), default)
    model: object = create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)
    return model


def _typed(python_type: Any) -> Grammar:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    if is_typeddict(python_type):
        python_type = _own_typed_dict(python_type)
    try:
        schema = TypeAdapter(python_type).json_schema()
    except (PydanticUserError, TypeError) as error:
        raise UsageError(
            f"{_named(python_type)} says nothing about an output: {str(error).splitlines()[0][:300]}",
            hint="a JSON schema, a type that pydantic knows, a list of choices or a re.Pattern does",
        ) from None
    return Grammar("json_schema", _dumps(_closed(schema)), python_type)


def _own_typed_dict(python_type: Any) -> Any:
    """The same TypedDict as pydantic wants it: before Python 3.12 it knows only those of typing_extensions."""
    from typing import NotRequired

    from typing_extensions import TypedDict

    hints = get_type_hints(python_type, include_extras=True)
    required = python_type.__required_keys__
    return TypedDict(
        python_type.__name__, {name: each if name in required else NotRequired[each] for name, each in hints.items()}
    )  # type: ignore[operator]


def _closed(schema: Json) -> Json:
    for _, each in subschemas(schema):
        if isinstance(each, dict) and each.get("type") == "object" and "properties" in each:
            each.setdefault("additionalProperties", False)
    return schema


def _dumps(value: Json) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the grammar is not JSON: {error}") from None


def _named(source: object) -> str:
    return str(getattr(source, "__name__", repr(source)))[:100]
