"""Relax: a grammar as a server's own grammar backend takes it, and what had to be left to the validator.

In: a Grammar, the backend's name, the server's complaints.   Out: the constraint's field of `sampling_params`, the losses by name.
Used for text that the server samples itself; beam searches carry their masks here and lose nothing.
Knows nothing about: HTTP.
Invariants: what is sent allows everything that the original allows: keywords that others lean on go together with them, and what
stands below a `not` or an `if` goes whole. Every loss is named with its JSON pointer.
Source: SGLang 0.5.23 `constrained/json_schema_validation.py` - a server names a pointer and what it cannot do there, one at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.contracts import Grammar, Json
from toolkit.errors import SchemaError, UnsupportedError
from toolkit.schema import subschemas

MOST_TRIES = 64  # complaints of one server about one schema
# keyword -> what leans on it and would narrow or mean something else alone
_TOGETHER = {
    "properties": ("additionalProperties", "unevaluatedProperties"),
    "patternProperties": ("additionalProperties", "unevaluatedProperties"),
    "prefixItems": ("items", "unevaluatedItems"),
    "items": ("additionalItems", "unevaluatedItems"),
    "contains": ("minContains", "maxContains", "unevaluatedItems"),
    "if": ("then", "else", "unevaluatedProperties", "unevaluatedItems"),
    "then": ("if", "else", "unevaluatedProperties", "unevaluatedItems"),
    "else": ("if", "then", "unevaluatedProperties", "unevaluatedItems"),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "not", "dependentSchemas", "$ref"), ("unevaluatedProperties", "unevaluatedItems")),
}  # fmt: skip
# What xgrammar refuses in SGLang 0.5.23, taken out before the first try; the server's complaints do the rest.
_XGRAMMAR = frozenset(
    ("contains", "dependentRequired", "dependentSchemas", "else", "if", "maxContains", "minContains", "multipleOf", "not",
     "then", "uniqueItems")
)  # fmt: skip
_STRING_GROUPS = (("minLength", "maxLength"), ("format",), ("pattern",))  # one of them is kept: the last that is there
_COMPLAINT = re.compile(r"JSON Schema at #(\S*) is not supported by \w+: (.*)")
_SPECIAL = re.compile(r"([\\.^$|?*+()\[\]{}\-/])")


@dataclass(frozen=True, slots=True)
class Constraint:
    """One grammar for one backend: a field of `sampling_params` and its text; `lost` is what only the validator enforces."""

    field: str
    text: str
    lost: tuple[str, ...] = ()


def constraint(grammar: Grammar, backend: str) -> Constraint:
    """The grammar as far as this backend is known to take it. UnsupportedError for a kind that no server takes."""
    if grammar.kind == "json_schema":
        schema = json.loads(grammar.source)
        lost = _drop_known(schema) if backend == "xgrammar" else []
        return Constraint("json_schema", json.dumps(schema), tuple(lost))
    if grammar.kind == "regex":
        return Constraint("regex", grammar.source)
    if grammar.kind == "choices":
        escaped = [_SPECIAL.sub(r"\\\1", choice) for choice in json.loads(grammar.source)]
        return Constraint("regex", "|".join(f"({choice})" for choice in escaped))
    raise UnsupportedError(
        f"grammar kind {grammar.kind} is not supported for text that a server samples: it reads no Lark",
        hint="beam(width=1) is greedy decoding with the masks on this side",
    )


def relaxed(asked: Constraint, complaint: str) -> Constraint:
    """The constraint without what the server has just complained about; SchemaError where it does not say what that is."""
    found = _COMPLAINT.search(complaint)
    if asked.field != "json_schema" or found is None:
        raise SchemaError(f"the server refuses the grammar: {complaint}", hint="beam(width=1) has its masks on this side")
    schema = json.loads(asked.text)
    pointer, reason = found.groups()
    each = next((each for here, each in subschemas(schema) if here == pointer), None)
    culprits = [name for name in re.findall(r"[$\w]+", reason) if isinstance(each, dict) and name in each]
    if isinstance(each, dict) and "cannot be enforced together" in reason:
        culprits = _spare(each)
    if not culprits or not isinstance(each, dict):
        raise SchemaError(f"the server refuses the schema: {complaint}", path=pointer)
    lost = [*asked.lost, *_drop(each, culprits, pointer)]
    return Constraint(asked.field, json.dumps(schema), tuple(dict.fromkeys(lost)))


def _drop_known(schema: Json) -> list[str]:
    """Take out of `schema` what xgrammar is known to refuse; the losses."""
    lost: list[str] = []
    gone: list[str] = []  # pointers of what was taken out: nothing below them is of interest any more
    for pointer, each in list(subschemas(schema)):
        if isinstance(each, dict) and not any(f"{pointer}/".startswith(f"{root}/") for root in gone):
            before = set(each)
            lost += _drop(each, [*sorted(_XGRAMMAR & each.keys()), *_spare(each)], pointer)
            gone += [f"{pointer}/{keyword}" for keyword in before - each.keys()]
    return lost


def _spare(each: Mapping[str, Json]) -> list[str]:
    """Keywords of all groups of string constraints but one: a backend takes a single one for a string."""
    there = [[name for name in group if name in each] for group in _STRING_GROUPS]
    return [name for group in [group for group in there if group][:-1] for name in group]


def _drop(each: dict[str, Json], keywords: list[str], pointer: str) -> list[str]:
    todo, lost = list(keywords), []
    while todo:
        keyword = todo.pop(0)
        if keyword in each:
            del each[keyword]
            lost.append(f"{keyword} at {pointer or 'the root'}")
            todo += _TOGETHER.get(keyword, ())
    return lost
