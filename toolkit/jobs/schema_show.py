"""Schema show: a schema as rows of a table.

In: a checked schema.   Out: rows, one a place in the values that it describes.
Knows nothing about: how they are printed.
Invariants: a reference is followed once on every way down, so that a recursive schema ends; what is not a row's own (its children,
its text for people) is listed under `rules`, so that nothing that decides is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from toolkit.contracts import Json
from toolkit.results import json_text
from toolkit.schema import escape_pointer, subschemas

MAX_ROWS = 2000
CHILDREN = ("properties", "prefixItems", "$defs", "definitions", "anyOf", "oneOf", "allOf", "patternProperties")
TEXTS = ("title", "description", "examples", "default", "$comment", "$schema", "$id", "type", "required", "$anchor")


@dataclass(frozen=True, slots=True)
class Row:
    """One place: pattern of its pointer, types, whether it must be there, the keywords that bound it, what it is for, at which
    place of the schema it is described."""

    place: str
    type: str
    required: bool
    rules: str
    description: str
    path: str


def rows(schema: Json) -> list[Row]:
    """Rows from the root down, properties in their order; at most MAX_ROWS."""
    known = dict(subschemas(schema))
    found: list[Row] = []
    for row in _rows("", "", schema, True, known, ()):
        found.append(row)
        if len(found) == MAX_ROWS:
            break
    return found


def _rows(place: str, path: str, schema: Json, required: bool, known: dict[str, Json], above: tuple[str, ...]) -> Iterator[Row]:
    if not isinstance(schema, dict):
        yield Row(place, "any" if schema else "nothing", required, "", "", path)
        return
    reference = schema.get("$ref")
    goal = reference[1:] if isinstance(reference, str) and reference.startswith("#") else None
    if goal in above:
        yield Row(place, "as above", required, str(reference), str(schema.get("description", "")), path)
        return
    if goal is not None and goal in known and not set(schema) - {*TEXTS, "$ref"}:
        yield from _rows(place, goal, known[goal], required, known, (*above, goal))
        return
    yield Row(place, _type(schema), required, _rules(schema), str(schema.get("description", schema.get("title", ""))), path)
    for keyword in ("allOf", "anyOf", "oneOf"):
        for number, each in enumerate(schema.get(keyword, ())):
            yield from _rows(f"{place} ({keyword} {number + 1})", f"{path}/{keyword}/{number}", each, required, known, above)
    if goal is not None and goal in known:  # beside other keywords: both hold
        yield from _rows(f"{place} (and {reference})", goal, known[goal], required, known, (*above, goal))
    needed = schema.get("required", ())
    for name, each in schema.get("properties", {}).items():
        key = escape_pointer(name)
        yield from _rows(f"{place}/{key}", f"{path}/properties/{key}", each, name in needed, known, above)
    for pattern, each in schema.get("patternProperties", {}).items():
        key = escape_pointer(pattern)
        yield from _rows(f"{place}/<{key}>", f"{path}/patternProperties/{key}", each, False, known, above)
    for number, each in enumerate(schema.get("prefixItems", ())):
        yield from _rows(f"{place}/{number}", f"{path}/prefixItems/{number}", each, True, known, above)
    if isinstance(schema.get("items"), dict):
        yield from _rows(f"{place}/*", f"{path}/items", schema["items"], True, known, above)


def _type(schema: dict[str, Any]) -> str:
    named = schema.get("type", "")
    if named:
        return " | ".join(named) if isinstance(named, list) else str(named)
    for keyword in ("anyOf", "oneOf", "allOf", "const", "enum"):
        if keyword in schema:
            return "object" if "properties" in schema else keyword
    return "object" if "properties" in schema else "any"


def _rules(schema: dict[str, Any]) -> str:
    shown = {*CHILDREN, *TEXTS} | ({"items"} if isinstance(schema.get("items"), dict) else set())
    own = {name: value for name, value in schema.items() if name not in shown}
    return ", ".join(f"{name} {json_text(value)}" for name, value in own.items())
