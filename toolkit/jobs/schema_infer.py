"""Schema infer: a schema from example values, with genson, and the bounds that genson does not set.

In: JSON values.   Out: a JSON Schema of draft 2020-12 that each of them fits.
Knows nothing about: files, the command line.
Invariants: every example is valid under what comes out (checked, not hoped for); objects are closed; every string, array and number has
bounds, `slack` times as far as the examples go, so that a model that runs on is stopped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from toolkit.contracts import Json
from toolkit.errors import InputError, MissingExtraError, UsageError
from toolkit.grammar.types import grammar_of
from toolkit.results import json_text
from toolkit.schema import check_schema
from toolkit.validate.check import Validator

LARGEST = 1e300
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def infer(values: Sequence[Json], *, slack: float = 2.0, listed: int = 0) -> dict[str, Json]:
    """The schema of the examples. Strings with at most `listed` different values, each seen twice on average, become enums.

    UsageError for options out of range, InputError without examples, or where they have no schema in common that they all fit;
    MissingExtraError without genson.
    """
    if not 1.0 <= slack <= 100.0:
        raise UsageError(f"slack = {slack!r} is not allowed: a number from 1 to 100")
    if not values:
        raise InputError("there is no example", hint="one JSON value a line, or one JSON document")
    try:
        from genson import SchemaBuilder
    except ModuleNotFoundError:
        raise MissingExtraError("genson", "infer") from None
    builder = SchemaBuilder(schema_uri=DIALECT)
    for value in values:
        builder.add_object(value)
    found: dict[str, Json] = _bounded(builder.to_schema(), list(values), slack, listed)
    check_schema(found)
    validator = Validator(grammar_of(found))
    for number, value in enumerate(values, 1):
        report = validator.check(json_text(value))
        if not report.valid:
            fault = report.violations[0]
            raise InputError(f"example {number} does not fit what was inferred: {fault.path or '/'}: {fault.message}")
    return found


def _bounded(schema: dict[str, Any], values: list[Json], slack: float, listed: int) -> dict[str, Any]:
    """The schema with bounds from those of its examples that are of its types."""
    if "anyOf" in schema:
        return {**schema, "anyOf": [_bounded(each, values, slack, listed) for each in schema["anyOf"]]}
    named = schema.get("type")
    kinds = named if isinstance(named, list) else [named]
    out = dict(schema)
    if "object" in kinds:
        objects = [value for value in values if isinstance(value, dict)]
        out["properties"] = {
            name: _bounded(each, [value[name] for value in objects if name in value], slack, listed)
            for name, each in schema.get("properties", {}).items()
        }
        out["additionalProperties"] = False
    if "array" in kinds:
        arrays = [value for value in values if isinstance(value, list)]
        out["maxItems"] = _stretched(max(map(len, arrays)), slack)
        if "items" in schema:
            out["items"] = _bounded(schema["items"], [item for value in arrays for item in value], slack, listed)
    if "string" in kinds:
        out |= _string([value for value in values if isinstance(value, str)], slack, listed if kinds == ["string"] else 0)
    if {"integer", "number"} & set(kinds):
        out |= _number([value for value in values if isinstance(value, int | float) and not isinstance(value, bool)], slack)
    return out


def _string(values: list[str], slack: float, listed: int) -> dict[str, Any]:
    different = sorted(set(values))
    if len(different) <= listed and len(values) >= 2 * len(different):
        return {"enum": different}
    return {"maxLength": _stretched(max(map(len, values)), slack)}


def _number(values: list[float], slack: float) -> dict[str, Any]:
    """From 0 (or below it by the slack) to the greatest and the slack more."""
    least, most = min(values), max(values)
    low = 0 if least >= 0 else -_stretched(-least, slack)
    return {"minimum": low, "maximum": _stretched(max(most, 0), slack)}


def _stretched(amount: float, slack: float) -> float:
    """The next round number (1, 2 or 5 times a power of ten) from `slack` times the amount on; the amount where that is no number."""
    wanted = max(slack * amount, 1)
    if wanted > LARGEST:
        return amount
    power: int = 10 ** math.floor(math.log10(wanted))
    return next(math.ceil(step * power) for step in (1, 2, 5, 10) if step * power >= wanted)
