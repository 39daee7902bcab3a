"""Outline: what a JSON Schema says plainly about one place of an instance.

In: a checked schema, then steps down by key or index.   Out: the JSON types, names and texts that a value there may have.
Knows nothing about: instances, parsing.
Invariants: sound, not complete - whatever it excludes the schema excludes too; what it does not understand excludes nothing.
Source: JSON Schema core draft 2020-12 ($ref, allOf and a schema's own keywords are read; anyOf and oneOf for types only).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any
from urllib.parse import unquote

from toolkit.contracts import Json
from toolkit.schema import draft_of, subschemas

# What a value is, each value exactly one; JSON Schema's "number" is an integer or a fraction, and 2.0 is an integer.
TYPES = frozenset(("null", "boolean", "integer", "fraction", "string", "array", "object"))
_MOST = 64  # schemas that judge one value together, and branches that are looked into
_FALSE: dict[str, Json] = {"enum": []}  # what `false` means: no value at all


class Outline:
    """One place. `parts` are the schemas that a value there has to satisfy, all of them; none = anything goes."""

    def __init__(self, root: Json, parts: tuple[Json, ...], plain: bool) -> None:
        self._root, self._plain = root, plain
        self.parts = tuple(self._closure(parts)) if plain else ()

    @classmethod
    def of(cls, schema: Json) -> Outline:
        """The outline of a whole document. Inside embedded documents ("$id") references mean something else: nothing is read."""
        inner = any(
            pointer and isinstance(each, dict) and ("$id" in each or "id" in each) for pointer, each in subschemas(schema)
        )
        return cls(schema, (schema,), not inner)

    def child(self, key: str | int) -> Outline:
        """The place one step down."""
        found = [_member(part, key) if isinstance(key, str) else _item(part, key) for part in self.parts]
        return Outline(self._root, tuple(each for each in found if each is not None), self._plain)

    @cached_property
    def types(self) -> frozenset[str]:
        """Types (of TYPES) that a value may have."""
        return self._types(self.parts, 0)

    @cached_property
    def texts(self) -> tuple[str, ...] | None:
        """The only strings that are allowed, where the schema lists them (enum, const)."""
        lists = [_listed(part) for part in self.parts if "enum" in part or "const" in part]
        return tuple(each for each in lists[0] if isinstance(each, str)) if lists else None

    @cached_property
    def most_chars(self) -> int | None:
        """The least `maxLength`."""
        return self._least("maxLength")

    @cached_property
    def most_items(self) -> int | None:
        """The least `maxItems`."""
        return self._least("maxItems")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names that `properties` lists, in its order."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.get("properties", ())))

    @cached_property
    def required(self) -> tuple[str, ...]:
        """Names that must be there."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.get("required", ())))

    def allows_name(self, name: str) -> bool:
        """Whether an object may have a member of that name."""
        return not any(
            part.get("additionalProperties") is False and "patternProperties" not in part and name not in part.get("properties", ())
            for part in self.parts
        )  # fmt: skip

    def _least(self, keyword: str) -> int | None:
        return min((part[keyword] for part in self.parts if keyword in part), default=None)

    def _closure(self, schemas: tuple[Json, ...]) -> list[dict[str, Json]]:
        """`schemas` with what their $ref and allOf add, each once."""
        todo, seen = list(schemas), set[int]()
        found: list[dict[str, Json]] = []
        while todo and len(found) < _MOST:
            schema = todo.pop()
            if schema is True or id(schema) in seen:
                continue
            seen.add(id(schema))
            part: dict[str, Any] = _FALSE if schema is False else schema
            if isinstance(part.get("$ref"), str):
                target = self._target(part["$ref"])
                todo += [] if target is None else [target]
                if draft_of(self._root).name in ("Draft7Validator", "Draft6Validator", "Draft4Validator"):
                    continue  # in these drafts the neighbours of a $ref say nothing
            todo += part.get("allOf", ())
            found.append(part)
        return found

    def _target(self, reference: str) -> Json | None:
        """The schema that a local pointer leads to; None for every other kind of reference."""
        if reference != "#" and not reference.startswith("#/"):
            return None
        here = self._root
        for step in map(unquote, reference[1:].split("/")[1:]):
            name = step.replace("~1", "/").replace("~0", "~")
            here = here[int(name)] if isinstance(here, list) else here[name]  # check_schema has followed it
        return here

    def _types(self, parts: tuple[Json, ...], depth: int) -> frozenset[str]:
        allowed = TYPES
        for part in parts:
            if "type" in part:
                named = [part["type"]] if isinstance(part["type"], str) else part["type"]
                allowed &= {*named, *(("integer", "fraction") if "number" in named else ())}
            if "enum" in part or "const" in part:
                allowed &= {type_of(value) for value in _listed(part)}
            for keyword in ("anyOf", "oneOf"):
                if depth < 4 and len(part.get(keyword, ())) in range(1, _MOST):
                    branches = [self._types(tuple(self._closure((each,))), depth + 1) for each in part[keyword]]
                    allowed &= frozenset().union(*branches)
        return frozenset(allowed)


def type_of(value: Json) -> str:
    """Which of TYPES a value is."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) or value.is_integer() else "fraction"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def in_words(types: frozenset[str]) -> str:
    """Types as a message names them."""
    number = {"integer", "fraction"} <= types
    return " or ".join(sorted(types - {"integer", "fraction"} | {"number"} if number else types)) or "nothing"


def _listed(part: dict[str, Json]) -> list[Json]:
    return [part["const"]] if "const" in part else part["enum"]


def _member(part: dict[str, Json], name: str) -> Json | None:
    if name in part.get("properties", ()):
        return part["properties"][name]
    return None if "patternProperties" in part else part.get("additionalProperties")


def _item(part: dict[str, Json], index: int) -> Json | None:
    items = part.get("items")
    first = part.get("prefixItems", items if isinstance(items, list) else [])
    if index < len(first):
        return first[index]
    return part.get("additionalItems") if isinstance(items, list) else items
