"""Keywords: JSON Schema's own, where the library's are wrong on decimals, quadratic, or cannot be stopped.

In: what `jsonschema` hands to a keyword (validator, keyword's value, instance, schema).   Out: its ValidationErrors.
Knows nothing about: drafts, reports.
Invariants: no pattern is searched without a time limit; the verdicts are
those of the specification.
Source: JSON Schema validation draft 2020-12; the rest of the keywords is the library's.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from jsonschema.exceptions import ValidationError
from referencing.jsonschema import lookup_recursive_ref

from toolkit.contracts import Json
from toolkit.schema import SEARCH_SECONDS, Keyword, OutOfTime, compile_pattern, seconds_left, unique_items


def _found(pattern: str, text: str) -> bool:
    try:
        return compile_pattern(pattern).search(text, timeout=min(SEARCH_SECONDS, seconds_left())) is not None
    except TimeoutError:
        raise OutOfTime from None


def _pattern(validator: Any, value: str, instance: Json, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _found(value, instance):
        yield ValidationError(f"{instance!r} does not match {value!r}")


def _pattern_properties(validator: Any, value: dict[str, Any], instance: Json, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        for pattern, subschema in value.items():
            for name in instance:
                if _found(pattern, name):
                    yield from validator.descend(instance[name], subschema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, value: Any, instance: Json, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    for name in instance:
        if name in schema.get("properties", ()) or any(_found(each, name) for each in schema.get("patternProperties", ())):
            continue
        if value is False:
            yield ValidationError(f"property {name!r} is not allowed here")
        else:
            yield from validator.descend(instance[name], value, path=name)


def _unevaluated_properties(validator: Any, value: Any, instance: Json, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    seen = _evaluated(validator, instance, {key: each for key, each in schema.items() if key != "unevaluatedProperties"})
    for name in instance:
        if name in seen:
            continue
        if value is False:
            yield ValidationError(f"property {name!r} is not allowed here: no subschema knows it")
        else:
            yield from validator.descend(instance[name], value, path=name)


def _evaluated(validator: Any, instance: dict[str, Json], schema: Any) -> set[str]:
    """Names of the properties that a schema which holds for `instance` has looked at, in itself and its in-place subschemas."""
    seconds_left()
    if not isinstance(schema, dict):
        return set()
    names = set(instance)
    if "additionalProperties" in schema or "unevaluatedProperties" in schema:
        return names
    seen = names & set(schema.get("properties", ()))
    seen |= {name for name in names for pattern in schema.get("patternProperties", ()) if _found(pattern, name)}
    for target in _targets(validator, schema):
        seen |= _evaluated(target, instance, target.schema)
    for each in _in_place(validator, instance, schema):
        seen |= _evaluated(validator, instance, each)
    return seen


def _targets(validator: Any, schema: dict[str, Any]) -> Iterator[Any]:
    """Validators of what the references of a schema lead to."""
    found = [validator._resolver.lookup(schema[key]) for key in ("$ref", "$dynamicRef") if key in schema]
    found += [lookup_recursive_ref(validator._resolver)] if "$recursiveRef" in schema else []
    for each in found:
        yield validator.evolve(schema=each.contents, _resolver=each.resolver)


def _in_place(validator: Any, instance: Json, schema: dict[str, Any]) -> Iterator[Any]:
    """The in-place subschemas that hold for the instance."""

    def holds(subschema: Any) -> bool:
        return next(iter(validator.descend(instance, subschema)), None) is None

    for keyword in ("allOf", "anyOf", "oneOf"):
        yield from filter(holds, schema.get(keyword, ()))
    yield from (each for name, each in schema.get("dependentSchemas", {}).items() if name in instance)
    if "if" in schema:
        condition = holds(schema["if"])
        yield from [schema["if"]] if condition else []
        yield from [schema[branch] for branch in ("then" if condition else "else",) if branch in schema]


def _multiple_of(validator: Any, value: float, instance: Json, schema: Any) -> Iterator[ValidationError]:
    """Exact on the decimals as written: 19.99 is a multiple of 0.01."""
    if validator.is_type(instance, "number") and Fraction(str(instance)) % Fraction(str(value)):
        yield ValidationError(f"{instance!r} is not a multiple of {value!r}")


OVERRIDES: dict[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "unevaluatedProperties": _unevaluated_properties,
    "multipleOf": _multiple_of,
    "uniqueItems": unique_items,
}
