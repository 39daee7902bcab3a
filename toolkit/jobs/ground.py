"""Ground: for every text and number of a value, the characters of the source that it stands for, or null.

In: a source text, a value, the schema it was made by.   Out: spans by JSON pointer, and the places that have none and should.
Knows nothing about: models, files.
Invariants: every string leaf has an entry, a number only where it is found; a span lies inside the source. Strings that the schema
lists (enum, const) are labels, not quotations: they are looked for, but lack of one is no fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from toolkit.contracts import Json
from toolkit.jobs.haystack import Haystack, Place
from toolkit.jobs.numbers import Numbers
from toolkit.jobs.pointer import fits, leaves, parts


@dataclass(slots=True)
class Grounded:
    """`places` by pointer (None = not found), `missing` those that count as ungrounded."""

    places: dict[str, Place | None] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


class Source:
    """One text; what is computed for one value serves the next."""

    def __init__(self, text: str) -> None:
        self._haystack = Haystack(text)

    @cached_property
    def _numbers(self) -> Numbers:
        return Numbers(self._haystack.text)

    def ground(
        self,
        value: Json,
        schema: Json,
        *,
        most: float,
        free: Sequence[str] = (),
        near: Mapping[str, tuple[int, int]] | None = None,
    ) -> Grounded:
        """`most` is the distance of near places, `free` patterns of places that need none; `near` says where to look first."""
        found = Grounded()
        for pointer, item in leaves(value):
            if isinstance(item, str):
                place = self._text(item, most, (near or {}).get(pointer))
                found.places[pointer] = place
                if (
                    place is None
                    and item.strip()
                    and not any(fits(each, pointer) for each in free)
                    and not listed(schema, pointer, item)
                ):
                    found.missing.append(pointer)
            elif isinstance(item, int | float) and not isinstance(item, bool):
                span = self._numbers.find(item)
                if span is not None:
                    found.places[pointer] = Place(*span, "exact")
        return found

    def _text(self, needle: str, most: float, near: tuple[int, int] | None) -> Place | None:
        if near is not None:
            place = self._haystack.find(needle, most=most, start=near[0], end=near[1])
            if place is not None:
                return place
        return self._haystack.find(needle, most=most)


def listed(schema: Json, pointer: str, value: str) -> bool:
    """Does the schema list this very value at this place? Linear in the schema."""
    return any(value in _listed(each) for each in _Places(schema).at(schema, parts(pointer)))


def _listed(schema: Mapping[str, Json]) -> list[Json]:
    named = schema.get("enum", [])
    return [*(named if isinstance(named, list) else []), *([schema["const"]] if "const" in schema else [])]


class _Places:
    """Subschemas that speak about a place, those behind conditions too; each is looked at once for each rest of the way."""

    def __init__(self, root: Json) -> None:
        self._root = root
        self._seen: set[tuple[int, int]] = set()

    def at(self, schema: Json, rest: Sequence[str]) -> Iterator[Mapping[str, Json]]:
        todo: list[tuple[Json, Sequence[str]]] = [(schema, rest)]
        while todo:
            each, left = todo.pop()
            if not isinstance(each, dict) or (id(each), len(left)) in self._seen:
                continue
            self._seen.add((id(each), len(left)))
            if not left:
                yield each
            todo += [(inside, left) for inside in self._beside(each)]
            todo += [(below, left[1:]) for below in (_steps(each, left[0]) if left else ())]

    def _beside(self, schema: Mapping[str, Json]) -> Iterator[Json]:
        for name in ("anyOf", "oneOf", "allOf"):
            several = schema.get(name)
            yield from several if isinstance(several, list) else ()
        target = schema.get("$ref")
        if isinstance(target, str) and target.startswith("#"):
            at = self._root
            for part in parts(target):
                at = at.get(part) if isinstance(at, dict) else None
            yield at


def _steps(schema: Mapping[str, Json], part: str) -> list[Json]:
    named, prefix = schema.get("properties"), schema.get("prefixItems")
    steps: list[Json] = [named[part]] if isinstance(named, dict) and part in named else [schema.get("additionalProperties")]
    if part.isdecimal():
        steps.append(schema.get("items"))
        if isinstance(prefix, list) and int(part) < len(prefix):
            steps.append(prefix[int(part)])
    return steps
