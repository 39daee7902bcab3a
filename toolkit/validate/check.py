"""Check: is this text acceptable? The last word over every hypothesis, whatever the mask allowed.

In: a `Grammar` once, then texts.   Out: `Report`: the parsed value and every violation, as records.
Knows nothing about: tokens, masks, engines.
Invariants: never raises over a text (KeyboardInterrupt and its like pass) and never hangs: what could not be decided in time is
a violation; at most `max_violations` are reported and every shown value is cut to `SHOWN` characters. The validators of a Python
type are the caller's own code: whatever they raise is a violation, but nothing bounds their time.
Source: jsonschema (drafts 4 to 2020-12, formats asserted, references local), then pydantic where a Python type stands behind.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from toolkit.contracts import Grammar, Json, Report, Violation
from toolkit.errors import InputError, SchemaError
from toolkit.schema import JsonError, PatternError, compile_regex, escape_pointer, parse_json, schema_of
from toolkit.validate.shown import cut, shown

CHECK_SECONDS = 1.0


class Validator:
    """Judge of one grammar's texts. Thread-safe.

    Raises SchemaError where the grammar's own source is at fault. Where the grammar brings a judge, that has the last word. A
    `lark` grammar without one has no judge but its matcher: here every text is valid, and its value is the text.
    """

    def __init__(self, grammar: Grammar, *, seconds: float = CHECK_SECONDS, max_violations: int = 32) -> None:
        self._seconds = seconds
        self._most = max_violations
        self._grammar = grammar
        judges = {"json_schema": self._json_schema, "regex": self._regex, "choices": self._choices, "lark": self._lark}
        self._judge: Callable[[str], Report] = grammar.judge or judges[grammar.kind]()

    def check(self, text: str) -> Report:
        """The verdict over one text. Validators of the grammar's Python type run here, unbounded in time."""
        return self._judge(text)

    def _json_schema(self) -> Callable[[str], Report]:
        from toolkit.validate.judge import SchemaJudge  # and with it jsonschema, which other grammars do not need

        judge = SchemaJudge(schema_of(self._grammar.source), self._seconds)
        python_type = self._grammar.python_type
        typed = None if python_type is None else _TypeJudge(python_type)

        def check(text: str) -> Report:
            try:
                value = parse_json(text)
            except InputError as error:
                path = error.path if isinstance(error, JsonError) else ""
                return Report(None, (Violation(cut(path), "json", "one JSON value", shown(text), error.message),))
            violations = tuple(judge.violations(value, self._most))
            if not violations and typed is not None:
                violations = tuple(typed.violations(text, value)[: self._most])
            return Report(value, violations)

        return check

    def _regex(self) -> Callable[[str], Report]:
        source = self._grammar.source
        try:
            pattern = compile_regex(source)
        except PatternError as error:
            raise SchemaError(str(error), keyword="regex") from None

        def check(text: str) -> Report:
            try:
                why = "" if pattern.fullmatch(text, timeout=self._seconds) else "the text does not match as a whole"
            except TimeoutError:
                why = f"not decided within {self._seconds} s"
            return Report(text, (Violation("", "regex", shown(source), shown(text), why),) if why else ())

        return check

    def _choices(self) -> Callable[[str], Report]:
        choices = _source(self._grammar)
        if not isinstance(choices, list) or not choices or not all(isinstance(each, str) for each in choices):
            raise SchemaError("choices must be a JSON list of at least one string", keyword="choices")
        allowed, expected = frozenset(choices), shown(choices)

        def check(text: str) -> Report:
            if text in allowed:
                return Report(text)
            return Report(text, (Violation("", "choices", expected, shown(text), "the text is none of the choices"),))

        return check

    def _lark(self) -> Callable[[str], Report]:
        return Report


def _source(grammar: Grammar) -> Json:
    try:
        return parse_json(grammar.source)
    except InputError as error:
        raise SchemaError(f"the {grammar.kind} is not JSON: {error.message}", keyword=grammar.kind) from None


class _TypeJudge:
    """What pydantic says about a text that the schema already allows: validators, constraints, Python types."""

    def __init__(self, python_type: Any) -> None:
        from pydantic import TypeAdapter

        self._adapter: TypeAdapter[Any] = TypeAdapter(python_type)

    def violations(self, text: str, value: Json) -> list[Violation]:
        from pydantic import ValidationError

        try:
            self._adapter.validate_json(text)
        except ValidationError as error:
            return [_complaint(each) for each in error.errors(include_url=False, include_context=False)]
        except (Exception, SystemExit) as error:  # a validator of the user's model may raise anything
            return [Violation("", "type", "a value that the type's own validators take", shown(value), _said(error))]
        return []


def _complaint(each: Any) -> Violation:
    """One of pydantic's errors; `each` is its ErrorDetails."""
    path = "".join(f"/{escape_pointer(key)}" for key in each["loc"])
    return Violation(path, each["type"], cut(each["msg"]), shown(_json_of(each["input"])), cut(each["msg"]))


def _said(error: BaseException) -> str:
    return cut(f"{type(error).__name__}: {_written(str, error)}")


def _json_of(value: object) -> Json:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):  # what a validator before this one made of the text
        return _written(repr, value)
    return value


def _written(how: Callable[[object], str], value: object) -> str:
    try:
        return how(value)
    except Exception:  # the user's own code as well
        return f"(a {type(value).__name__} that cannot be written)"
