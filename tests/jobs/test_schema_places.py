"""Places that a job names: one that no value can have, or where the option would do nothing, is refused with the nearest right one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.errors import UsageError
from toolkit.jobs.pointer import general, leaves
from toolkit.jobs.schema_places import check_spec
from toolkit.jobs.spec import make_spec

ITEM = {
    "type": "object",
    "properties": {"price": {"type": "number"}, "name": {"type": "string"}},
    "additionalProperties": False,
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "quantity": {"type": "integer"},
        "customer": {"$ref": "#/$defs/person"},
        "items": {"type": "array", "items": ITEM},
        "a/b": {"type": ["string", "null"]},
        "extra": {"type": "object"},
        "pair": {"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
        "either": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"x": {"type": "string"}}}]},
        "kind": {"enum": ["a", {"b": 1}]},
        "free": {"type": "object", "properties": {"x": {}}, "additionalProperties": {"type": "string"}},
        "tree": {"$ref": "#/$defs/tree"},
    },
    "$defs": {
        "person": {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}},
        "tree": {"type": "object", "properties": {"leaf": {"type": "string"}, "next": {"$ref": "#/$defs/tree"}}},
    },
}  # fmt: skip


def check(schema: Any = SCHEMA, **options: Any) -> None:
    check_spec(make_spec({"schema": schema, **options}), schema)


@pytest.mark.parametrize(
    "place",
    ["*", "/quantity", "/customer/name", "/items/*/price", "/items/0/name", "/a~1b", "/*", "/extra/anything/at/all", "/pair/1",
     "/either/x", "/kind", "/kind/b", "/free/whatever", "/tree/next/next/next/leaf", "/*/name"],
)  # fmt: skip
def test_a_place_that_a_value_may_have_is_taken(place: str) -> None:
    check(review_below={place: 0.5}, ground_free=[place])


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("/quantty", "did you mean /quantity"),
        ("/price", r"did you mean /items/\*/price"),
        ("/items/price", r"did you mean /items/\*/price"),
        ("/items/*/prize", r"did you mean /items/\*/price"),
        ("/customer/nam", "did you mean /customer/name"),
        ("/quantity/x", "no value of the schema has it"),
        ("/pair/2", "no value of the schema has it"),
        ("/a/b", "did you mean /a~1b"),
        ("/zzzzzz", "there are /quantity, /customer, .* and more"),
        ("/tree/next/next/lef", "no value of the schema has it"),
        ("/items", r"holds other values.*name those: /items/\*"),
        ("", "the whole value, which holds other values"),
        ("/customer", "name those: /customer/name, /customer/age"),
    ],
)
@pytest.mark.parametrize("option", ["review_below", "ground_free"])
def test_a_place_that_no_value_has_is_refused_with_the_nearest_that_is_there(option: str, place: str, said: str) -> None:
    with pytest.raises(UsageError, match=rf"{option} names (?s:.*){said}"):
        check(**{option: {place: 0.5} if option == "review_below" else [place]})


@pytest.mark.parametrize(
    ("merge", "said"),
    [
        ({"/quantty": "max"}, "did you mean /quantity"),
        ({"/items/*/price": "max"}, "inside the list /items: lists are merged as a whole"),
        ({"/customer/name": "union"}, "there is never a list"),
        ({"/customer/name": "min"}, "there is never a number"),
        ({"/customer": "first", "/customer/name": "longest"}, "which decides over all that is in it"),
        ({"/quantity": "max", "/items": "concat", "/customer/name": "longest", "/extra/x": "union", "*": "vote"}, None),
    ],
)
def test_a_merge_policy_needs_a_place_where_it_can_be_followed(merge: dict[str, str], said: str | None) -> None:
    if said is None:
        check(merge=merge, chunk_tokens=8)
        return
    with pytest.raises(UsageError, match=said):
        check(merge=merge, chunk_tokens=8)


@pytest.mark.parametrize(
    "schema",
    [{}, {"type": "object"}, {"$ref": "#anchor", "$defs": {"a": {"$anchor": "anchor"}}}, {"allOf": [{"type": "object"}, {}]},
     {"type": "object", "patternProperties": {"^q": {"type": "integer"}}}, {"not": {"type": "string"}},
     {"if": {"required": ["a"]}, "then": {"properties": {"quantty": {"type": "integer"}}}}],
)  # fmt: skip
def test_what_a_schema_leaves_open_may_be_anything(schema: Any) -> None:
    check(schema, review_below={"/quantty": 0.5})


WORDS = st.sampled_from(["a", "b", "x/y", "0"])
VALUES = st.recursive(st.integers() | st.text(max_size=3) | st.none(), lambda part: st.lists(part, max_size=3) | st.dictionaries(WORDS, part, max_size=3))  # fmt: skip


@settings(max_examples=20)
@given(VALUES)
def test_no_place_of_a_value_is_refused_by_a_schema_that_was_made_of_it(value: Any) -> None:
    pytest.importorskip("genson")
    from toolkit.jobs.schema_infer import infer

    schema = infer([{"v": value}])
    for path, _ in leaves({"v": value}):
        check(schema, review_below={path: 0.5, general(path): 0.5})
