"""Document: a JSON Schema as text or file, checked before anything is built from it.

In: a schema value, a file, or the name of a file in `schemas/`.   Out: a schema that is well-formed and self-contained.
Knows nothing about: instances, and what a grammar engine can express.
Invariants: after `check_schema` every `$ref` ends inside the document (or in a bundled meta-schema), no `$ref` leads back to
itself without descending into the instance, and the work was linear in the document; nothing is ever fetched.
Source: JSON Schema core draft 2020-12; also drafts 2019-09, 7, 6 and 4 where `$schema` names them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from toolkit.contracts import Json
from toolkit.errors import InputError, SchemaError, UsageError
from toolkit.schema.clock import OutOfTime, clocked, deadline, seconds_left
from toolkit.schema.equality import unique_items
from toolkit.schema.pattern import PatternError, compile_pattern
from toolkit.schema.reader import MAX_CHARS, escape_pointer, parse_json

MAX_SUBSCHEMAS = 20_000
CHECK_SECONDS = 1.0  # of CPU time, from the text to the last reference; most of it goes to the meta-schema


@dataclass(frozen=True, slots=True)
class Draft:
    """A dialect: the address that names its meta-schema and the name of the library's validator class for it."""

    uri: str
    name: str

    @property
    def validator(self) -> Any:  # jsonschema's protocol, whose classes are made at run time
        import jsonschema

        return getattr(jsonschema, self.name)


DEFAULT_DRAFT = "https://json-schema.org/draft/2020-12/schema"
DRAFTS: Mapping[str, Draft] = MappingProxyType(
    {
        uri: Draft(uri, name)
        for uri, name in {
            DEFAULT_DRAFT: "Draft202012Validator",
            "https://json-schema.org/draft/2019-09/schema": "Draft201909Validator",
            "http://json-schema.org/draft-07/schema": "Draft7Validator",
            "http://json-schema.org/draft-06/schema": "Draft6Validator",
            "http://json-schema.org/draft-04/schema": "Draft4Validator",
        }.items()
    }
)

# Where subschemas live, by the shape of the keyword's value.
_ONE = frozenset(
    [
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    ]
)
_MANY = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
_NAMED = frozenset(("$defs", "definitions", "dependentSchemas", "dependencies", "patternProperties", "properties"))
_IN_PLACE = frozenset(("allOf", "anyOf", "oneOf", "if", "then", "else", "not", "dependentSchemas", "dependencies"))


def load_schema(source: str | Path, root: Path | None = None) -> Json:
    """The checked schema of a file, or of `schemas/<name>.schema.json` under `root` (the current folder).

    Raises UsageError where there is no such file, InputError where it is not JSON, SchemaError where it is no schema.
    """
    named = (root or Path.cwd()) / "schemas" / f"{source}.schema.json"
    path = next((each for each in (Path(source), named) if each.is_file()), None)
    if path is None:
        known = ", ".join(sorted(each.name.removesuffix(".schema.json") for each in named.parent.glob("*.schema.json")))
        raise UsageError(f"schema {str(source)!r} is neither a file nor a name in {named.parent}: known are {known or 'none'}")
    with path.open("rb") as file:
        text = file.read(MAX_CHARS + 1)
    if len(text) > MAX_CHARS:
        raise InputError(f"{path} has more than {MAX_CHARS} bytes: no schema is read beyond", hint="split it")
    with _in_time():
        schema = parse_json(text)
        check_schema(schema)
    return schema


@lru_cache(maxsize=256)
def schema_of(text: str) -> Json:
    """The checked schema of a JSON text; callers do not change it. Raises SchemaError, also where it is not JSON."""
    with _in_time():
        try:
            schema = parse_json(text)
        except InputError as error:
            raise SchemaError(f"the schema is not JSON: {error.message}") from None
        check_schema(schema)
    return schema


def checked_schema(schema: Json) -> Json:
    """A checked copy of a schema value from anywhere; callers do not change it. Raises SchemaError, also where it is no JSON."""
    try:
        text = json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(f"the schema is no JSON value: {error}") from None
    return schema_of(text)


@contextmanager
def _in_time() -> Iterator[None]:
    """Refuse what cannot be checked in time, unless an outer deadline ran out, which is for whoever set it."""
    try:
        with deadline(CHECK_SECONDS):
            yield
    except OutOfTime:
        seconds_left()
        raise SchemaError(f"the schema is too large to be checked within {CHECK_SECONDS} s", hint="split it") from None


def draft_of(schema: Json) -> Draft:
    """The dialect that `$schema` names, 2020-12 where it is silent. Raises SchemaError for one that is unknown."""
    name = schema.get("$schema", DEFAULT_DRAFT) if isinstance(schema, dict) else DEFAULT_DRAFT
    draft = DRAFTS.get(name.rstrip("#")) if isinstance(name, str) else None
    if draft is None:
        allowed = ", ".join(DRAFTS)
        raise SchemaError(f"$schema = {str(name)[:100]!r} is not known: known are {allowed}", keyword="$schema")
    return draft


def subschemas(schema: Json, pointer: str = "") -> Iterator[tuple[str, Json]]:
    """Every subschema with its JSON pointer, the document itself first. Values that are no schemas (enum, const) are skipped.

    Raises OutOfTime where a deadline has passed.
    """
    todo = [(pointer, schema)]
    while todo:
        seconds_left()
        here, each = todo.pop()
        yield here, each
        todo.extend(reversed(list(_children(here, each))))


def _children(pointer: str, schema: Json) -> Iterator[tuple[str, Json]]:
    for keyword, value in schema.items() if isinstance(schema, dict) else ():
        here = f"{pointer}/{escape_pointer(keyword)}"
        if keyword in _NAMED and isinstance(value, dict):
            for name, each in value.items():
                if isinstance(each, dict | bool):
                    yield f"{here}/{escape_pointer(name)}", each
        elif keyword in _MANY and isinstance(value, list):
            yield from ((f"{here}/{index}", each) for index, each in enumerate(value))
        elif keyword in _ONE and isinstance(value, dict | bool):
            yield here, value


def check_schema(schema: Json) -> None:
    """Refuse what is not a well-formed, self-contained schema: SchemaError with the JSON pointer and the keyword."""
    if not isinstance(schema, dict | bool):
        raise SchemaError(f"a schema is an object, true or false, not {type(schema).__name__}")
    draft = draft_of(schema)
    with _in_time():
        for count, _ in enumerate(subschemas(schema)):
            if count >= MAX_SUBSCHEMAS:
                raise SchemaError(f"the schema has more than {MAX_SUBSCHEMAS} subschemas", hint="split it")
        _check_form(schema, draft)
        _check_patterns(schema)
        _check_refs(schema)


@lru_cache(maxsize=len(DRAFTS))
def _meta(draft: Draft) -> Any:
    return clocked(draft.validator, {"uniqueItems": unique_items})(draft.validator.META_SCHEMA)


def _check_form(schema: Json, draft: Draft) -> None:
    from jsonschema.exceptions import best_match

    try:
        error = next(iter(_meta(draft).iter_errors(schema)), None)
    except RecursionError:
        raise SchemaError("the schema is nested too deep to be checked", hint="use $ref and $defs") from None
    if error is not None:
        error = best_match([error])
        path = "".join(f"/{escape_pointer(key)}" for key in error.absolute_path)
        keyword = next((str(key) for key in reversed(error.absolute_path) if isinstance(key, str)), "")
        raise SchemaError(f"schema at {path or 'the root'}: {error.message[:300]}", path=path, keyword=keyword)


def _check_patterns(schema: Json) -> None:
    for pointer, each in subschemas(schema):
        for keyword in ("pattern", "patternProperties") if isinstance(each, dict) else ():
            patterns = [each[keyword]] if isinstance(each.get(keyword), str) else each.get(keyword, ())
            for pattern in patterns:
                seconds_left()
                try:
                    compile_pattern(pattern)
                except PatternError as error:
                    path = f"{pointer}/{keyword}"
                    raise SchemaError(f"schema at {path}: {error}", path=path, keyword=keyword) from None


def bundled(schema: Json) -> Any:
    """A `referencing.Registry` with this document under its own name and the published meta-schemas; it fetches nothing."""
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

    resource = _specification(schema).create_resource(schema)
    return REGISTRY.with_resources([("", resource), (resource.id() or "", resource)]).crawl()


def _specification(schema: Json) -> Any:
    from referencing.jsonschema import specification_with

    return specification_with(draft_of(schema).uri)


def _check_refs(schema: Json) -> None:
    """Follow every reference once, with the base that holds where it stands; then look for a way round in place."""
    specification = _specification(schema)
    edges: dict[int, list[tuple[str, int]]] = {}  # id of a subschema -> those that judge the same instance value
    todo = [("", schema, bundled(schema).resolver(specification.create_resource(schema).id() or ""), False)]
    later: list[tuple[str, Json, Any, bool]] = []  # targets of references, most of them met before
    while todo or later:
        seconds_left()
        pointer, here, resolver, nested = (todo or later).pop()
        if not isinstance(here, dict) or id(here) in edges:
            continue
        if nested:
            resolver = resolver.in_subresource(specification.create_resource(here))
        edges[id(here)] = out = []
        for keyword in ("$ref", "$dynamicRef"):
            if isinstance(here.get(keyword), str):
                found = _follow(here[keyword], resolver, pointer, keyword)
                later.append((f"{pointer}/{keyword}", found.contents, found.resolver, False))
                if keyword == "$ref":
                    out.append((pointer, id(found.contents)))
        for path, child in _children(pointer, here):
            todo.append((path, child, resolver, True))
            if path[len(pointer) + 1 :].partition("/")[0] in _IN_PLACE:
                out.append((pointer, id(child)))
    _refuse_cycles(edges)


def _follow(reference: str, resolver: Any, pointer: str, keyword: str) -> Any:
    from referencing.exceptions import InvalidAnchor, NoSuchAnchor, PointerToNowhere, Unresolvable

    try:
        return resolver.lookup(reference)
    except (PointerToNowhere, NoSuchAnchor, InvalidAnchor):
        why, hint = "leads nowhere in this document", "local references look like #/$defs/Name"
    except Unresolvable:
        why, hint = "is not local, and nothing is fetched", "copy the schema into $defs and refer to #/$defs/Name"
    except (ValueError, RecursionError):
        why, hint = "cannot be read", "local references look like #/$defs/Name"
    raise SchemaError(
        f"{keyword} {reference[:200]!r} at {pointer or 'the root'} {why}", path=pointer, keyword=keyword, hint=hint
    )


def _refuse_cycles(edges: dict[int, list[tuple[str, int]]]) -> None:
    """Depth-first search without recursion: an edge to a node on the current path is a cycle."""
    done: set[int] = set()
    for start in edges:
        if start in done:
            continue
        path, on_path = [(start, iter(edges[start]))], {start}
        while path:
            node, out = path[-1]
            for pointer, target in out:
                if target in on_path:
                    raise SchemaError(
                        f"$ref at {pointer or 'the root'} leads back to itself without a step into the instance",
                        path=pointer, keyword="$ref",
                    )  # fmt: skip
                if target not in done and target in edges:
                    path.append((target, iter(edges[target])))
                    on_path.add(target)
                    break
            else:
                path.pop()
                on_path.discard(node)
                done.add(node)
