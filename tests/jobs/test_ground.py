"""Grounding: every string has a span or null, numbers where they are found, labels are not quotations."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from toolkit.jobs.doubt import doubts
from toolkit.jobs.ground import Source, listed

TEXT = "Order for Mia Chen: 3 red lamps and 2 chairs, by Friday."
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "speed": {"anyOf": [{"$ref": "#/$defs/speed"}, {"type": "null"}]},
        "items": {
            "type": "array",
            "items": {"type": "object", "properties": {"what": {"type": "string"}, "kind": {"const": "thing"}}},
        },
    },
    "$defs": {"speed": {"enum": ["express", "slow"]}},
}


def grounded(value: Any, **options: Any) -> tuple[dict[str, Any], list[str]]:
    found = Source(TEXT).ground(value, SCHEMA, **{"most": 0.2, **options})
    return {path: place and TEXT[place.start : place.end] for path, place in found.places.items()}, found.missing


def test_every_string_has_an_entry_and_a_number_where_it_is_found() -> None:
    value = {"name": "Mia Chen", "n": 3, "m": 77, "ok": True, "none": None, "items": [{"what": "red lamps"}, {"what": "sofa"}]}
    spans, missing = grounded(value)
    assert spans == {"/name": "Mia Chen", "/n": "3", "/items/0/what": "red lamps", "/items/1/what": None}
    assert missing == ["/items/1/what"]


def test_labels_of_the_schema_and_free_places_may_be_absent_from_the_text() -> None:
    value = {"name": "nobody", "speed": "express", "items": [{"what": "sofa", "kind": "thing"}]}
    assert grounded(value)[1] == ["/name", "/items/0/what"]
    assert grounded(value, free=("/items/*/what",))[1] == ["/name"]
    assert grounded(value, free=("*",))[1] == []
    assert grounded({"speed": "swift"})[1] == ["/speed"]  # not one of the labels


def test_a_value_is_looked_for_where_its_piece_was_first() -> None:
    text = "Ann. Ann. Bob"
    found = Source(text).ground({"a": "Ann", "b": "Bob"}, {}, most=0, near={"/a": (5, 9), "/b": (0, 4)})
    assert [(place.start, place.end) for place in found.places.values() if place] == [(5, 8), (10, 13)]


def test_a_schema_that_leads_in_circles_is_looked_through_once() -> None:
    knot: dict[str, Any] = {
        "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}
    }
    deep: dict[str, Any] = {"enum": ["x"]}
    for _ in range(60):
        deep = {"anyOf": [deep, deep]}
    assert not listed({**knot, "$ref": "#/$defs/a"}, "", "x")
    assert listed(deep, "", "x") and not listed(deep, "", "y")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=3), each, max_size=3), max_leaves=8))  # fmt: skip
def test_spans_lie_in_the_text_whatever_the_value(value: Any) -> None:
    for place in Source(TEXT).ground(value, SCHEMA, most=0.5).places.values():
        assert place is None or 0 <= place.start < place.end <= len(TEXT)


def test_reasons_to_look_name_the_place_and_the_measure() -> None:
    value = {"a": 1, "b": [2, 3], "c": "x", "d": None}
    confidence = {"/a": 0.4, "/b/0": 0.95, "/b/1": 0.5, "/c": 0.6}
    thresholds = {"*": 0.5, "/b/*": 0.9, "/d": 0.1}
    found = doubts(value, confidence, thresholds, ["/c"])
    assert [(each["path"], each["reason"]) for each in found] == [
        ("/c", "not found in the text"), ("/a", "low confidence"), ("/b/1", "low confidence"), ("/d", "its confidence is not known"),
    ]  # fmt: skip
    assert found[2]["confidence"] == 0.5 and found[2]["threshold"] == 0.9
    assert doubts(value, confidence, {}, []) == []
