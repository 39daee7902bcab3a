"""Equality: when two JSON values are the same.

In: values.   Out: hashable keys, equal exactly where the values are.
Knows nothing about: schemas' other keywords.
Invariants: 1 is 1.0 but not true; objects are sets of members, arrays keep their order; time and memory are linear in the value.
Source: JSON Schema core draft 2020-12, 4.2.2.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from toolkit.contracts import Json


def value_key(value: Json) -> Hashable:
    """A key for dicts and sets: two values have equal keys exactly where they are the same JSON value."""
    if isinstance(value, dict):
        return ("object", frozenset((name, value_key(each)) for name, each in value.items()))
    if isinstance(value, list):
        return ("array", tuple(map(value_key, value)))
    return ("boolean" if isinstance(value, bool) else "", value)


def unique_items(validator: Any, value: bool, instance: Json, schema: Any) -> Iterator[Exception]:
    """The keyword `uniqueItems` in linear time; the library compares every pair of objects."""
    from jsonschema.exceptions import ValidationError

    if not (value and isinstance(instance, list)):
        return
    first: dict[Hashable, int] = {}
    for index, item in enumerate(instance):
        other = first.setdefault(value_key(item), index)
        if other != index:
            yield ValidationError(f"items {other} and {index} are the same: {item!r}", path=[index])
            return
