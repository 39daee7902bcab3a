"""Schema places: do the places that a job names exist in the values of its schema?

In: a checked schema, patterns of jobs.pointer by option.   Out: nothing, or the UsageError that names the option, the place and the
nearest one that is there.
Knows nothing about: what the options do with their places.
Invariants: only what no value of the schema can have is refused: what the schema leaves open on purpose (additionalProperties, items
without a word, references that are no pointer into the document) may be anything. An object whose properties are listed is taken at
its word, whether or not it is closed: a name that is not among them is a typo.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from toolkit.contracts import Json
from toolkit.errors import UsageError
from toolkit.jobs.pointer import EVERYWHERE, parts
from toolkit.jobs.spec import JobSpec
from toolkit.schema import escape_pointer

MOST_SHOWN = 8
MOST_PLACES = 500  # of a schema, for suggestions
MOST_DEPTH = 8
SCALARS = frozenset(("string", "number", "integer", "boolean", "null"))
_BESIDE = ("anyOf", "oneOf", "allOf")
_IF = ("if", "then", "else")
_LISTED = ("union", "concat")
_COUNTED = ("min", "max")

Schemas = list[Json]  # all that speak of one place; True says nothing, and so allows anything


def check_spec(spec: JobSpec, schema: Json) -> None:
    """UsageError for a place in review_below, ground_free or merge that no value of the schema has, or where it has no effect."""
    for option, table in (("review_below", spec.review_below), ("ground_free", spec.ground_free)):
        for pattern in table:
            if not _types(_at(schema, pattern, option)) & SCALARS:
                below = [each for each in _places(schema) if each.startswith(f"{pattern}/")]
                raise UsageError(
                    f"{option} names {_shown(pattern)}, which holds other values: it is about single ones",
                    hint=f"name those: {', '.join(below[:MOST_SHOWN])}" if below else "",
                )
    for pattern, policy in spec.merge.items():
        _check_merge(schema, pattern, policy)
        above = next((each for each in spec.merge if each != EVERYWHERE and pattern.startswith(f"{each}/")), None)
        if above is not None:
            raise UsageError(f"merge names {pattern} and {_shown(above)}, which decides over all that is in it: leave one out")


def _check_merge(schema: Json, pattern: str, policy: str) -> None:
    types = _types(_at(schema, pattern, "merge"))
    way = pattern.split("/")
    for above in ("/".join(way[:depth]) for depth in range(1, len(way))):
        if "object" not in _types(_at(schema, above, "merge")):
            raise UsageError(
                f"merge names {pattern}, which is inside the list {_shown(above)}: lists are merged as a whole",
                hint=f"declare a policy for {_shown(above)}",
            )
    needed, what = (["array"], "a list") if policy in _LISTED else (["number", "integer"], "a number")
    if pattern != EVERYWHERE and policy in (*_LISTED, *_COUNTED) and not types & set(needed):
        raise UsageError(f"merge policy {policy} at {_shown(pattern)} cannot be followed: there is never {what}")


def _shown(pattern: str) -> str:
    return pattern or "the whole value"


def _at(schema: Json, pattern: str, option: str) -> Schemas:
    """All that the schema says of a place; UsageError where no value has it."""
    if pattern == EVERYWHERE:
        return [True]
    found = _together(schema, [schema])
    for part in parts(pattern):
        found = _step(schema, found, part)
        if not found:
            raise UsageError(
                f"{option} names the place {pattern!r}: no value of the schema has it", hint=_hint(schema, pattern)
            )
    return found


def _hint(schema: Json, pattern: str) -> str:
    there = [each for each in _places(schema) if each]
    last = pattern.rpartition("/")[2]
    near = [each for each in there if each.rpartition("/")[2] == last]  # the right name, elsewhere
    near = near or difflib.get_close_matches(pattern, there, n=1)
    if near:
        return f"did you mean {near[0]}?"
    return f"there are {', '.join(there[:MOST_SHOWN])}{' and more' if len(there) > MOST_SHOWN else ''}" if there else ""


def _places(schema: Json) -> list[str]:
    """Patterns of the places that the schema names, from the root down."""
    found: list[str] = []
    todo = [("", _together(schema, [schema]))]
    while todo and len(found) < MOST_PLACES:
        here, speaking = todo.pop(0)
        found.append(here)
        if here.count("/") < MOST_DEPTH:
            names = dict.fromkeys(name for each in speaking for name in _names(each))
            todo += [(f"{here}/{escape_pointer(name)}", _step(schema, speaking, name)) for name in names]
    return found


def _names(schema: Json) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        if isinstance(schema.get("items"), dict) or "prefixItems" in schema or isinstance(schema.get("items"), list):
            yield EVERYWHERE


def _together(root: Json, schemas: Iterable[Json]) -> Schemas:
    """These, and all that speaks of the same place: alternatives, conditions, what references lead to."""
    found: Schemas = []
    seen: set[int] = set()
    todo = list(schemas)
    while todo:
        each = todo.pop(0)
        if each is False or id(each) in seen:
            continue
        seen.add(id(each))
        found.append(each)
        if isinstance(each, dict):
            todo += [inside for name in _BESIDE for inside in each.get(name, ())]
            todo += [each[name] for name in _IF if name in each]
            todo += each.get("dependentSchemas", {}).values()
            todo += [_target(root, each[name]) for name in ("$ref", "$dynamicRef", "$recursiveRef") if name in each]
    return found


def _target(root: Json, reference: str) -> Json:
    """What a pointer into the document leads to; True (anything) for other references."""
    if not reference.startswith("#") or (len(reference) > 1 and reference[1] != "/") or "%" in reference:
        return True
    at = root
    for part in parts(reference[1:]):
        at = (
            at[int(part)] if isinstance(at, list) and part.isdecimal() else at.get(part, True) if isinstance(at, dict) else True
        )
    return at


def _step(root: Json, speaking: Schemas, part: str) -> Schemas:
    """All that is said of what is called `part` (any of them, for *), [] where there is no such thing."""
    return _together(root, [below for each in (_named, _further, _silent) for below in each(speaking, part)][:MOST_PLACES])


def _named(speaking: Schemas, part: str) -> Iterator[Json]:
    """What is said of this very name or index."""
    for each in _objects(speaking):
        for name, below in each.get("properties", {}).items():
            if part in (name, EVERYWHERE):
                yield below
        yield from each.get("patternProperties", {}).values()  # which name fits which is the validator's to say
        for value in (*each.get("enum", ()), *([each["const"]] if "const" in each else ())):
            yield from ({"const": below} for below in _inside(value, part))
        if part == EVERYWHERE or part.isdecimal():
            prefix = each.get("prefixItems", each["items"] if isinstance(each.get("items"), list) else [])
            yield from (below for index, below in enumerate(prefix) if part in (str(index), EVERYWHERE))
            if isinstance(each.get("items"), dict | bool):
                yield each["items"]


def _further(speaking: Schemas, part: str) -> Iterator[Json]:
    """What is said of names and items beyond those that are listed."""
    names = ["additionalProperties", "unevaluatedProperties"]
    if part == EVERYWHERE or part.isdecimal():
        names += ["additionalItems", "unevaluatedItems"]
    yield from (each[name] for each in _objects(speaking) for name in names if name in each)


def _silent(speaking: Schemas, part: str) -> Iterator[Json]:
    """Anything, where nothing is listed and nothing is closed."""
    objects = _objects(speaking)
    if any(each is True for each in speaking) and not objects:
        yield True
    types = _types(speaking)
    about_objects = ("properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "enum", "const")
    about_arrays = ("items", "prefixItems", "enum", "const")
    for kind, about in (("object", about_objects), ("array", about_arrays)):
        index = kind == "object" or part == EVERYWHERE or part.isdecimal()
        if objects and index and kind in types and not any(name in each for each in objects for name in about):
            yield True


def _objects(speaking: Schemas) -> list[Mapping[str, Any]]:
    return [each for each in speaking if isinstance(each, dict)]


def _inside(value: Json, part: str) -> list[Json]:
    if isinstance(value, dict):
        return list(value.values()) if part == EVERYWHERE else [value[part]] if part in value else []
    if isinstance(value, list):
        return value if part == EVERYWHERE else value[int(part) : int(part) + 1] if part.isdecimal() else []
    return []


def _types(speaking: Schemas) -> frozenset[str]:
    """The types that a value may have there: those that are named, or all."""
    everything = SCALARS | {"object", "array"}
    named: set[str] = set()
    for each in _objects(speaking):
        kinds = each.get("type", ())
        named |= {kinds} if isinstance(kinds, str) else set(kinds)
        named |= {_kind(value) for value in (*each.get("enum", ()), *([each["const"]] if "const" in each else ()))}
        named |= {"object"} if "properties" in each else set()
        named |= {"array"} if "items" in each or "prefixItems" in each else set()
    return frozenset(named) or everything


def _kind(value: Json) -> str:
    names: dict[type, str] = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
    return names.get(type(value), "null")
