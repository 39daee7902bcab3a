"""Relax: what a mask engine cannot express is taken out of a schema, by name, and never silently.

In: a schema and the engine's complaint.   Out: a wider schema and the list of what it lost; or where the fault lies.
Knows nothing about: the engine, whose verdicts come in as functions.
Invariants: a relaxed schema allows everything that the original allows; every loss is named with its JSON pointer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from fractions import Fraction

from toolkit.contracts import Json
from toolkit.schema import OutOfTime, subschemas

_COUNTS = ("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties", "maxContains", "minContains")
_MAY_STAND_BY_REF = {"$ref", "$defs", "definitions", "$id", "id", "$anchor", "$schema", "$comment"}
_LOCATE_TRIES = 200


def prepared(schema: Json, multiple_of: int) -> tuple[Json, list[str]]:
    """A copy as the engine wants it, and what it lost: `multipleOf` with more digits than the engine can bear.

    Nothing is lost by counts written as 2.0, which JSON Schema allows, becoming integers, nor by "x-guidance" going away.
    """
    schema = json.loads(json.dumps(schema))
    dropped: list[str] = []
    for pointer, each in subschemas(schema):
        if not isinstance(each, dict):
            continue
        each.pop("x-guidance", None)
        each.update({keyword: int(each[keyword]) for keyword in _COUNTS if isinstance(each.get(keyword), float)})
        if Fraction(str(each.get("multipleOf", 0))).numerator > multiple_of:
            del each["multipleOf"]
            dropped.append(f"multipleOf at {pointer or 'the root'}")
    return schema, dropped


def unenforced(schema: Json, warnings: Iterable[str]) -> list[str]:
    """The keywords that a lenient compile warned about, each with every place it stands at."""
    found: list[str] = []
    for warning in warnings:
        names = re.findall(r'"([^"]+)"', warning) if warning.startswith("Unimplemented keys") else []
        names += [name for name in ("oneOf", "format", "minProperties", "maxProperties") if _mentions(warning, name)]
        places = [
            f"{keyword} at {pointer or 'the root'}"
            for pointer, each in subschemas(schema)
            if isinstance(each, dict)
            for keyword in names
            if keyword in each and (keyword != "format" or str(each["format"]) in warning)
        ]
        found += places or [warning]
    return found


def _mentions(warning: str, keyword: str) -> bool:
    return keyword in warning.replace("min/maxProperties", "minProperties maxProperties")


def relax(schema: Json, complaint: str, compiles: Callable[[str], bool]) -> tuple[Json, list[str]]:
    """A copy of the schema without what the complaint is about, and the names of what was dropped ([] = nothing helps)."""
    schema = json.loads(json.dumps(schema))
    dropped: list[str] = []
    for pointer, each in list(subschemas(schema)):
        if isinstance(each, dict):
            lost = _lose(each, complaint, compiles)
            dropped += [f"{keyword} at {pointer or 'the root'}" for keyword in lost]
    return schema, dropped


def _lose(each: dict[str, Json], complaint: str, compiles: Callable[[str], bool]) -> list[str]:
    lost: list[str] = []
    if "not disjoint" in complaint and any(f"/{key}/" in complaint for key in each.get("patternProperties", ())):
        lost = [keyword for keyword in ("patternProperties", "additionalProperties") if keyword in each]
    elif "Properties" in complaint:
        optional = set(each.get("properties", ())) - set(each.get("required", ()))
        lost = [keyword for keyword in ("minProperties", "maxProperties") if keyword in each and optional]
    elif "regex" in complaint or "lookaround" in complaint or "look-around" in complaint:
        if isinstance(each.get("pattern"), str) and not compiles(each["pattern"]):
            lost.append("pattern")
        if not all(map(compiles, each.get("patternProperties", ()))):
            lost += [keyword for keyword in ("patternProperties", "additionalProperties") if keyword in each]
    elif "multipleOf" in complaint:
        lost = [keyword for keyword in ("multipleOf",) if keyword in each]
    elif "circular references with sibling" in complaint and "$ref" in each:
        lost = [keyword for keyword in each if keyword not in _MAY_STAND_BY_REF]
    for keyword in lost:
        del each[keyword]
    return lost


def locate(schema: Json, complaint: str, error_of: Callable[[Json], str]) -> tuple[str, str]:
    """JSON pointer and keyword of a fault: the deepest subschema that alone, with the root's definitions, fails the same way.

    Where the time runs out on the way, the deepest found so far.
    """
    named = re.search(r"json-schema:///#(\S*)", complaint)
    if named:
        return named.group(1), named.group(1).rpartition("/")[2]
    shared = {key: schema[key] for key in ("$schema", "$defs", "definitions") if key in schema}
    pointer, tries = "", 0
    try:
        for here, each in subschemas(schema):  # parents come before children
            if here and here.startswith(f"{pointer}/") and isinstance(each, dict) and tries < _LOCATE_TRIES:
                tries += 1
                pointer = here if _same(error_of({**shared, **each}), complaint) else pointer
    except OutOfTime:
        return pointer, pointer.rpartition("/")[2]
    return pointer, _culprit(schema, pointer, complaint)


def _same(error: str, complaint: str) -> bool:
    """Whether two complaints are of one kind: "Unsatisfiable schema: ..." names other things on the way down."""
    return (
        error.partition(":")[0] == complaint.partition(":")[0] if complaint.startswith("Unsatisfiable") else error == complaint
    )


def _culprit(schema: Json, pointer: str, complaint: str) -> str:
    """The keyword of that subschema which the complaint speaks of, else its last part."""
    each: Json = next((each for here, each in subschemas(schema) if here == pointer), {})
    words = set(re.findall(r"\w+", complaint))
    quoted = [key for key in each if key in words] if isinstance(each, dict) else []
    if isinstance(each, dict) and each.get("enum") == []:
        return "enum"
    return quoted[0] if quoted else pointer.rpartition("/")[2]
