"""Schemas from examples, lint and table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.errors import InputError, UsageError
from toolkit.grammar.types import grammar_of
from toolkit.jobs.schema_infer import infer
from toolkit.jobs.schema_lint import lint
from toolkit.jobs.schema_show import MAX_ROWS, rows
from toolkit.schema import check_schema
from toolkit.validate.check import Validator

ROOT = Path(__file__).parents[2]
CLOSED: dict[str, Any] = {"type": "object", "additionalProperties": False}


def closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {**CLOSED, "properties": properties, "required": list(properties)}


def warned(schema: Any, **options: Any) -> list[tuple[str, str]]:
    return [(each.path, each.keyword) for each in lint(schema, **options) if each.level == "warning"]


# --- lint -------------------------------------------------------------------------------------------------------------

BOUNDED: list[Any] = [
    {"type": "string", "maxLength": 10},
    {"type": "string", "enum": ["a", "b"]},
    {"const": "a"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,6}$"},
    {"type": "integer", "minimum": 0, "exclusiveMaximum": 100},
    {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.01},
    {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    {"type": ["string", "null"], "maxLength": 5},
    {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]},
]
UNBOUNDED: list[tuple[Any, str]] = [
    ({"type": "string"}, "maxLength"),
    ({"type": ["null", "string"]}, "maxLength"),
    ({"type": "string", "pattern": "^[a-z]+$"}, "pattern"),
    ({"type": "string", "pattern": "[0-9]{3}"}, "pattern"),
    ({"type": "string", "format": "uri"}, "format"),
    ({"type": "string", "format": "made-up"}, "format"),
    ({"type": "string", "maxLength": 100_000}, "maxLength"),
    ({"type": "array", "items": {"type": "boolean"}}, "maxItems"),
    ({"type": "integer"}, "minimum"),
    ({"type": "number", "minimum": 0}, "maximum"),
    ({"type": "object", "properties": {}}, "additionalProperties"),
    ({"description": "whatever"}, "type"),
    (True, "type"),
]


@pytest.mark.parametrize("schema", BOUNDED)
def test_what_is_bounded_is_not_warned_about(schema: Any) -> None:
    assert warned(closed({"x": schema})) == []


@pytest.mark.parametrize(("schema", "keyword"), UNBOUNDED)
def test_what_has_no_end_is_found_where_it_stands(schema: Any, keyword: str) -> None:
    assert set(warned(closed({"x": schema}))) == {("/properties/x", keyword)}


def test_what_no_mask_enforces_is_what_the_grammar_engine_says() -> None:
    unique = closed({"x": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3, "uniqueItems": True}})
    found = lint(unique)
    assert [(each.path, each.keyword, each.level) for each in found] == [("/properties/x", "uniqueItems", "warning")]
    assert "no mask" in found[0].message


def test_a_schema_that_cannot_be_met_is_an_error_and_nothing_else() -> None:
    (found,) = lint({"type": "object", "properties": {"a": {"type": "integer", "minimum": 2, "maximum": 1}}, "required": ["a"]})
    assert found.level == "error" and "/properties/a" in found.path


def test_optional_fields_are_a_warning_only_with_a_low_alpha() -> None:
    schema = {**closed({"a": {"type": "null"}, "b": {"type": "null"}}), "required": ["a"]}
    assert warned(schema) == [] and [each.level for each in lint(schema)] == ["note"]
    assert warned(schema, alpha=0) == [("", "required")]
    assert "b" in lint(schema, alpha=0)[0].message


def test_recursion_is_found_also_by_way_of_another() -> None:
    chain = {
        "$defs": {
            "a": closed({"next": {"$ref": "#/$defs/b"}}),
            "b": closed({"next": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}),
        }
    }
    found = warned({**closed({"x": {"$ref": "#/$defs/a"}}), **chain})
    assert found == [("/$defs/a/properties/next", "$ref"), ("/$defs/b/properties/next/anyOf/0", "$ref")]
    straight = {**closed({"x": {"$ref": "#/$defs/c"}, "y": {"$ref": "#/$defs/c"}}), "$defs": {"c": {"type": "null"}}}
    assert warned(straight) == []


def test_the_schemas_that_ship_compile_and_the_order_has_no_trap() -> None:
    found = {path.name: lint(json.loads(path.read_text())) for path in (ROOT / "schemas").glob("*.schema.json")}
    assert len(found) >= 5 and found["order.schema.json"] == []
    assert all(each.level != "error" for findings in found.values() for each in findings)


# --- infer ------------------------------------------------------------------------------------------------------------

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6, allow_subnormal=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=60)
@given(st.lists(PLAIN, min_size=1, max_size=4))
def test_every_example_fits_what_was_inferred_and_lint_finds_no_end_missing(values: list[Any]) -> None:
    schema = infer(values)
    check_schema(schema)
    validator = Validator(grammar_of(schema))
    assert all(validator.check(json.dumps(value)).valid for value in values)
    assert warned(schema) == []


def test_bounds_leave_room_and_rare_texts_can_be_listed() -> None:
    values = [{"kind": kind, "name": f"{n:020}", "count": 7, "tags": ["a"] * 3} for n, kind in enumerate(("new", "old") * 2)]
    schema = infer(values, slack=1.5, listed=3)
    assert schema["properties"] == {
        "kind": {"type": "string", "enum": ["new", "old"]},
        "name": {"type": "string", "maxLength": 50},
        "count": {"type": "integer", "minimum": 0, "maximum": 20},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["a"]}, "maxItems": 5},
    }
    assert (schema["required"], schema["additionalProperties"]) == (["count", "kind", "name", "tags"], False)
    assert "enum" not in json.dumps(infer(values))


def test_a_field_that_is_not_everywhere_is_optional() -> None:
    schema = infer([{"a": 1, "b": None}, {"a": 2.5}])
    assert schema["required"] == ["a"] and schema["properties"]["a"]["type"] == "number"


def test_numbers_near_the_end_of_what_there_is_keep_their_bounds() -> None:
    assert infer([10**307, -1.5e308])["maximum"] == 10**307


@pytest.mark.parametrize(("values", "options", "kind"), [([], {}, InputError), ([1], {"slack": 0.5}, UsageError)])
def test_what_cannot_be_inferred_is_refused(values: list[Any], options: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        infer(values, **options)


# --- show -------------------------------------------------------------------------------------------------------------


def test_a_table_has_a_row_for_every_place_and_follows_references() -> None:
    schema = {
        **closed({"who": {"$ref": "#/$defs/p", "description": "Who"}, "tags": {"type": "array", "items": {"enum": ["a"]}, "maxItems": 2}}),
        "$defs": {"p": {**closed({"name": {"type": "string", "maxLength": 9}}), "description": "A person"}},
    }  # fmt: skip
    found = [(row.place, row.type, row.required, row.rules, row.path) for row in rows(schema)]
    assert found == [
        ("", "object", True, "additionalProperties false", ""),
        ("/who", "object", True, "additionalProperties false", "/$defs/p"),
        ("/who/name", "string", True, "maxLength 9", "/$defs/p/properties/name"),
        ("/tags", "array", True, "maxItems 2", "/properties/tags"),
        ("/tags/*", "enum", True, 'enum ["a"]', "/properties/tags/items"),
    ]


def test_nothing_that_decides_is_left_out_of_the_table() -> None:
    schema = {
        **closed({"a": {"$ref": "#/$defs/s", "minLength": 2}, "b": {"type": "array", "items": False, "prefixItems": [True]}}),
        "patternProperties": {"^x/": {"type": "null"}},
        "if": {"required": ["b"]},
        "$defs": {"s": {"type": "string", "maxLength": 9}},
    }
    assert [(row.place, row.type, row.rules) for row in rows(schema)] == [
        ("", "object", 'additionalProperties false, if {"required":["b"]}'),
        ("/a", "any", '$ref "#/$defs/s", minLength 2'),
        ("/a (and #/$defs/s)", "string", "maxLength 9"),
        ("/b", "array", "items false"),
        ("/b/0", "any", ""),
        ("/<^x~1>", "null", ""),
    ]


def test_a_recursive_schema_ends() -> None:
    schema = {**closed({"next": {"$ref": "#"}}), "required": []}
    assert [(row.place, row.type) for row in rows(schema)] == [("", "object"), ("/next", "object"), ("/next/next", "as above")]
    wide = closed({f"k{number}": True for number in range(MAX_ROWS + 10)})
    assert len(rows(wide)) == MAX_ROWS
