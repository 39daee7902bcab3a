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
_MOST = 64  # schemas that judge one value together, and branches of a choice that are looked into
_DEEPEST = 8  # choices inside choices that are looked into
# Keywords read here that a dialect does not have: there they say nothing.
_UNKNOWN = {
    "Draft4Validator": frozenset(("const", "prefixItems")),
    **{name: frozenset(("prefixItems",)) for name in ("Draft6Validator", "Draft7Validator", "Draft201909Validator")},
}
_FALSE: dict[str, Json] = {"enum": []}  # what `false` means: no value at all


class Outline:
    """One place. `parts` are the schemas that a value there has to satisfy, all of them; none = anything goes."""

    def __init__(
        self, root: Json, schemas: tuple[Json, ...], known: dict[tuple[int, ...], Outline] | None, depth: int = 0
    ) -> None:
        """`known` holds the places met so far, by the identity of their schemas (None: nothing in the document is read)."""
        self._root, self._known, self._depth = root, known, depth
        self.parts = () if known is None else tuple(self._closure(schemas))

    @classmethod
    def of(cls, schema: Json) -> Outline:
        """The outline of a whole document. Where others are embedded in it ("$id", "$schema") words mean something else: nothing is read."""
        inner = any(
            pointer and isinstance(each, dict) and not each.keys().isdisjoint(("$id", "id", "$schema"))
            for pointer, each in subschemas(schema)
        )
        return cls(schema, (schema,), None if inner else {})

    def child(self, key: str | int) -> Outline:
        """The place one step down."""
        found = [_member(part, key) if isinstance(key, str) else _item(part, key) for part in self.parts]
        return self._place(tuple(each for each in found if each is not None), 0)

    def _place(self, schemas: tuple[Json, ...], depth: int) -> Outline:
        """The place of a value that is judged by `schemas`; `depth` counts the choices around it."""
        if self._known is None:
            return self
        key = (depth, *map(id, schemas))
        if key not in self._known:
            self._known[key] = Outline(self._root, schemas, self._known, depth)
        return self._known[key]

    @cached_property
    def _choices(self) -> tuple[tuple[Outline, ...], ...]:
        """The branches of every anyOf and oneOf; those that are too many or too deep are left out."""
        lists = [part[keyword] for part in self.parts for keyword in ("anyOf", "oneOf") if keyword in part]
        if self._depth >= _DEEPEST:
            return ()
        return tuple(
            tuple(self._place((each,), self._depth + 1) for each in branches) for branches in lists if len(branches) <= _MOST
        )

    @cached_property
    def types(self) -> frozenset[str]:
        """Types (of TYPES) that a value may have."""
        allowed = TYPES
        for part in self.parts:
            if "type" in part:
                named = [part["type"]] if isinstance(part["type"], str) else part["type"]
                allowed &= {*named, *(("integer", "fraction") if "number" in named else ())}
            if "enum" in part or "const" in part:
                allowed &= {type_of(value) for value in _listed(part)}
        for branches in self._choices:
            allowed &= frozenset[str]().union(*(each.types for each in branches))
        return allowed

    @cached_property
    def texts(self) -> tuple[str, ...] | None:
        """The only strings that are allowed, where the schema lists them (enum, const)."""
        lists = [_listed(part) for part in self.parts if "enum" in part or "const" in part]
        return tuple(each for each in lists[0] if isinstance(each, str)) if lists else None

    @cached_property
    def sorted_texts(self) -> tuple[str, ...]:
        """`texts` in the order of their characters: those that begin alike stand together."""
        return tuple(sorted(self.texts or ()))

    @cached_property
    def most_chars(self) -> int | None:
        """The most characters of a string: the least `maxLength`; of anyOf and oneOf the largest of branches that allow strings."""
        found = [int(part["maxLength"]) for part in self.parts if "maxLength" in part]
        for branches in self._choices:
            bounds = [each.most_chars for each in branches if "string" in each.types]
            if bounds and None not in bounds:
                found.append(max(each for each in bounds if each is not None))
        return min(found, default=None)

    @cached_property
    def most_items(self) -> int | None:
        """The least `maxItems`."""
        return min((int(part["maxItems"]) for part in self.parts if "maxItems" in part), default=None)

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

    def _closure(self, schemas: tuple[Json, ...]) -> list[dict[str, Json]]:
        """`schemas` with what their $ref and allOf add, each once."""
        todo, seen = list(schemas), set[int]()
        found: list[dict[str, Json]] = []
        draft = draft_of(self._root).name
        unknown = _UNKNOWN.get(draft, frozenset())
        while todo and len(found) < _MOST:
            schema = todo.pop()
            if schema is True or id(schema) in seen:
                continue
            seen.add(id(schema))
            part: dict[str, Any] = _FALSE if schema is False else schema
            if not unknown.isdisjoint(part):
                part = {keyword: value for keyword, value in part.items() if keyword not in unknown}
            if isinstance(part.get("$ref"), str):
                target = self._target(part["$ref"])
                todo += [] if target is None else [target]
                if draft in ("Draft7Validator", "Draft6Validator", "Draft4Validator"):
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
