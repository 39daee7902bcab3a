"""Judge: a value against a JSON Schema, in bounded time.

In: a checked schema once, then values.   Out: `Violation` records, lazily.
Knows nothing about: text, other grammar kinds.
Invariants: never fetches, never raises over a value; a schema that is exponential on a value runs out of time and says so.
Source: the `jsonschema` library with the keywords of `keywords.py`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from jsonschema.exceptions import ValidationError, best_match
from referencing.exceptions import Unresolvable

from toolkit.contracts import Json, Violation
from toolkit.schema import SEARCH_SECONDS, Draft, OutOfTime, bundled, clocked, deadline, draft_of, escape_pointer
from toolkit.validate.formats import checker
from toolkit.validate.keywords import OVERRIDES
from toolkit.validate.shown import SHOWN, cut, shown

UNDECIDED = "undecided"  # keyword of the violation that there was no verdict


class SchemaJudge:
    """Judge of one schema's values. Thread-safe."""

    def __init__(self, schema: Json, seconds: float) -> None:
        limited = _limited(draft_of(schema))
        self._validator: Any = limited(schema, registry=bundled(schema), format_checker=checker())
        self._seconds = seconds

    def violations(self, value: Json, most: int, part: Json = None) -> list[Violation]:
        """Up to `most` violations, in the order of the schema, or of a `part` (a subschema) of it."""
        found: list[Violation] = []
        judge = self._validator if part is None else self._validator.evolve(schema=part)
        try:
            with deadline(self._seconds):
                for error in judge.iter_errors(value):
                    found.append(_record(error))
                    if len(found) >= most:
                        break
        except OutOfTime:
            found.append(
                _undecided(value, f"not decided in time ({self._seconds} s for a text, {SEARCH_SECONDS} s for a pattern)")
            )
        except RecursionError:
            found.append(_undecided(value, "nested too deep to be decided"))
        except Unresolvable as error:
            found.append(_undecided(value, f"a reference leads nowhere: {str(error)[:SHOWN]}"))
        return found


@cache
def _limited(draft: Draft) -> Any:
    """The validator class of a dialect, bounded in time; made once: that takes longer than most judgements."""
    return clocked(draft.validator, OVERRIDES)


def _undecided(value: Json, why: str) -> Violation:
    return Violation("", UNDECIDED, "a verdict", shown(value), why)


def _pointer(error: ValidationError) -> str:
    return "".join(f"/{escape_pointer(key)}" for key in error.absolute_path)


def _record(error: ValidationError) -> Violation:
    message = cut(error.message)
    inner = best_match([error])
    if inner is not None and inner is not error:  # of an anyOf or oneOf: the branch that came closest
        message = f"{message}; closest: {cut(inner.message)} at {_pointer(inner) or 'the root'}"
    return Violation(_pointer(error), str(error.validator), shown(error.validator_value), shown(error.instance), message)
