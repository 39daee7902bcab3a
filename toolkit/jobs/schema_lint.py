"""Schema lint: what in a schema lets a model run on, or is left to the validator.

In: a checked schema.   Out: findings, each with its place.
Knows nothing about: the command line. What a mask can enforce is asked of toolkit.grammar, which compiles the schema; there is no
second list of keywords here.
Invariants: `error` = no record could be decoded, `warning` = it can, but a weak model may run on, or writes what the validator then
refuses; `note` = worth knowing. A schema without errors and warnings has no text longer than its bounds, whatever the model does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from toolkit.contracts import Grammar, Json
from toolkit.errors import SchemaError
from toolkit.grammar.compile import compile_grammar
from toolkit.grammar.types import grammar_of
from toolkit.results import json_text
from toolkit.schema import subschemas
from toolkit.text.tokenizer import ByteTokenizer

LONG = 2000  # a string of so many characters is taken for one without an end
Level = Literal["error", "warning", "note"]
ANNOTATIONS = ("title", "description", "examples", "default", "$comment", "$schema", "$id", "$defs", "definitions", "$anchor")
_STRING = ("pattern", "format", "maxLength")
_NUMBER = {"integer": ("minimum", "maximum"), "number": ("minimum", "maximum")}
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing: JSON pointer into the schema ("" = the root), the keyword it is about, what it means and what helps."""

    level: Level
    path: str
    keyword: str
    message: str
    hint: str = ""


def lint(schema: Json, *, alpha: float = 1.0) -> list[Finding]:
    """Findings, errors first. `alpha` is the length normalisation that the job will use."""
    found = [*_enforced(schema)]
    if not any(each.level == "error" for each in found):
        for path, each in subschemas(schema):
            found += _anything(path, each)
            if isinstance(each, dict) and not _fixed(each):
                found += [*_strings(path, each), *_arrays(path, each), *_objects(path, each, alpha), *_numbers(path, each)]
        found += _recursive(schema)
    order = {"error": 0, "warning": 1, "note": 2}
    return sorted(dict.fromkeys(found), key=lambda each: order[each.level])


def partial_of(schema: Json) -> tuple[str, ...]:
    """What a mask does not enforce, as "keyword at pointer". Raises SchemaError where the schema does not compile."""
    return tuple(compile_grammar(grammar_of(schema), ByteTokenizer()).partial)


def _enforced(schema: Json) -> Iterator[Finding]:
    try:
        partial = partial_of(schema)
    except SchemaError as error:
        yield Finding("error", error.path, error.keyword, error.message, error.hint)
        return
    for each in partial:
        keyword, _, place = each.partition(" at ")
        path = "" if place == "the root" else place
        hint = "rewrite it if many records fail at the stage validate"
        yield Finding(
            "warning", path, keyword, "no mask enforces it: a value that breaks it is refused when it is complete", hint
        )


def _anything(path: str, schema: Json) -> Iterator[Finding]:
    """A place where every value is allowed; of an object's further properties its openness is told instead."""
    bare = schema is True or (isinstance(schema, dict) and not set(schema) - set(ANNOTATIONS))
    if bare and not path.endswith(("/additionalProperties", "/not")):
        yield Finding("warning", path, "type", "any value is allowed: it has no end", "say what it is")


def types_of(schema: dict[str, Any]) -> tuple[str, ...]:
    """The types that `type` names, or those that other keywords speak of where it is silent."""
    named = schema.get("type")
    if named is not None:
        return tuple(named) if isinstance(named, list) else (str(named),)
    about = {
        "object": ("properties", "additionalProperties"),
        "array": ("items", "prefixItems"),
        "string": ("pattern", "format"),
    }
    return tuple(name for name, keywords in about.items() if any(keyword in schema for keyword in keywords))


def _fixed(schema: dict[str, Any]) -> bool:
    """Are its values listed?"""
    return "enum" in schema or "const" in schema


def _strings(path: str, schema: dict[str, Any]) -> Iterator[Finding]:
    if "string" in types_of(schema) and isinstance(schema.get("maxLength", LONG), int | float):
        asked = {"type": "string", "minLength": LONG, **{key: schema[key] for key in _STRING if key in schema}}
        if schema.get("maxLength", LONG) >= LONG and _may_be_long(asked):
            keyword = next((key for key in ("pattern", "format") if key in schema), "maxLength")
            yield Finding(
                "warning", path, keyword, "a string without an end: a weak model runs on to max_tokens", "set maxLength"
            )


def _may_be_long(schema: Json) -> bool:
    """Is there, or may there be, a text for it? The grammar engine says where there is none, or that it cannot tell."""
    try:
        compile_grammar(Grammar("json_schema", json_text(schema)), ByteTokenizer())
    except SchemaError as error:
        return "Unsatisfiable" not in error.message
    return True


def _arrays(path: str, schema: dict[str, Any]) -> Iterator[Finding]:
    if "array" in types_of(schema) and "maxItems" not in schema and schema.get("items") is not False:
        yield Finding("warning", path, "maxItems", "an array without an end: a weak model goes on adding items", "set maxItems")


def _objects(path: str, schema: dict[str, Any], alpha: float) -> Iterator[Finding]:
    if "object" not in types_of(schema):
        return
    closed = schema.get("additionalProperties") is False or schema.get("unevaluatedProperties") is False
    if not closed and "maxProperties" not in schema:
        hint = "additionalProperties: false, or maxProperties"
        yield Finding("warning", path, "additionalProperties", "an open object: the model may invent keys without an end", hint)
    optional = [name for name in schema.get("properties", ()) if name not in schema.get("required", ())]
    if optional:
        shown = ", ".join(optional[:5]) + (f" and {len(optional) - 5} more" if len(optional) > 5 else "")
        if alpha < 1:
            why = f"optional with alpha {alpha:g}: a shorter value is likelier, so a small model leaves them out: {shown}"
            yield Finding("warning", path, "required", why, "alpha 1, or require them and allow null")
        else:
            yield Finding("note", path, "required", f"optional, and so at the mercy of alpha (do not use 0): {shown}")


def _numbers(path: str, schema: dict[str, Any]) -> Iterator[Finding]:
    kind = next((name for name in types_of(schema) if name in _NUMBER), None)
    if kind is not None:
        missing = [names[0] for names in (_LOWER, _UPPER) if not any(name in schema for name in names)]
        if missing:
            why = f"{'an integer' if kind == 'integer' else 'a number'} without bounds: its digits may run on"
            yield Finding("warning", path, missing[0], why, f"set {' and '.join(missing)}")
        elif kind == "number" and "multipleOf" not in schema:
            yield Finding(
                "note", path, "multipleOf", "decimals without an end are allowed", "multipleOf, or an integer of cents"
            )


def _recursive(schema: Json) -> Iterator[Finding]:
    """References that lead back to a place they stand in: the depth has no bound."""
    known = dict(subschemas(schema))
    refs = {path: _target(each) for path, each in known.items() if isinstance(each, dict) and "$ref" in each}
    for path, target in refs.items():
        seen: set[str] = set()
        todo = [target]
        while todo:
            here = todo.pop()
            if here is None or here in seen:
                continue
            seen.add(here)
            todo += [goal for at, goal in refs.items() if at == here or at.startswith(f"{here}/")]
        if any(path == here or path.startswith(f"{here}/") for here in seen):
            why = "it leads back to itself: values may be nested without an end"
            yield Finding("warning", path, "$ref", why, "spell out as many levels as are needed")


def _target(schema: dict[str, Any]) -> str | None:
    reference = schema["$ref"]
    return reference[1:] if isinstance(reference, str) and reference.startswith("#") else None
