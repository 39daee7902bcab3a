"""The incremental JSON reader: the verdict of the whole-text reader, for every cut, and nothing is taken back."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.contracts import Json
from toolkit.errors import InputError, SchemaError, UsageError
from toolkit.schema import SEARCH_SECONDS, JsonError, parse_json
from toolkit.validate.early import EARLY_SECONDS, EarlyJudge
from toolkit.validate.json_machine import Note
from toolkit.validate.json_stream import JsonEvent, JsonStream
from toolkit.validate.judge import SchemaJudge
from toolkit.validate.outline import Outline, type_of
from toolkit.validate.partial import Partial, whole

BAD = [
    '{"a":1,"a":2}', '{"a":{"b":1,"\\u0062":2}}', "NaN", '{"a":Infinity}', "-Infinity", '"\\ud800"', '"\\udc00"', '"\\ud83d\\ud83d"',
    '"\\ud83dx"', '{"\\udfff":1}', "01", "1.", "-", "1e", "1e400", "-1e309", "1" * 309, "[1,]", '{"a":1,}', "[,1]", "{,}", "{1:2}",
    '{"a" 1}', "[1 2]", '{"a":1}x', "1 2", "", " ", '"', '"\x01"', '"\\x"', '"\\u12g4"', "tru", "truE", "nulll", "[" * 101, "\ufeff1",
    "[1}", "{]", '{"a":[}', "'a'", "{{", '{"a":1}}', "/**/1", '"a"b', '{"company":"company":"x"}', '{"ok":false":false}',
]  # fmt: skip
GOOD = [
    '{"a":[1,-2.5e3,{"b":"x\\ny🙂\\ud83d\\ude42"}],"c":null,"d":[],"e":{},"":0}', " [ 1 , 2 ]\n", '"é"', "1e308", "-0", "0.10", "1E+2",
    "true", "[" * 100 + "]" * 100, '{"a":{"a":{"a":1}}}', "1" * 308, '"\\u0000\\/"', "-0e-999",
]  # fmt: skip


def read(data: bytes, cuts: list[int], **options: Any) -> tuple[str, Any, list[tuple[str, Any, Any]]]:
    """(verdict, value or (offset, path), events with neighbouring texts joined)."""
    stream, events = JsonStream(**options), list[JsonEvent]()
    try:
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            events += stream.feed(data[start:end])
        return "good", stream.close(), joined(events)
    except JsonError as error:
        return "bad", (error.offset, error.path), joined(events)


def joined(events: list[JsonEvent]) -> list[tuple[str, Any, Any]]:
    found: list[tuple[str, Any, Any]] = []
    for each in events:
        if each.kind == "text" and found and found[-1][:2] == ("text", each.path):
            found[-1] = ("text", each.path, found[-1][2] + each.value)
        else:
            found.append((each.kind, each.path, each.value))
    return found


def every_cut(data: bytes) -> Iterator[list[int]]:
    yield []
    yield list(range(1, len(data)))
    yield from ([at] for at in range(1, len(data)))


def accepted(text: str | bytes) -> bool:
    try:
        parse_json(text)
    except InputError:
        return False
    return True


@pytest.mark.parametrize("text", GOOD)
def test_a_strict_text_has_the_same_value_and_events_for_every_cut(text: str) -> None:
    data = text.encode()
    whole_read = read(data, [])
    assert whole_read[:2] == ("good", parse_json(text))
    assert all(read(data, cuts) == whole_read for cuts in every_cut(data))


@pytest.mark.parametrize("text", BAD)
def test_any_other_text_is_refused_at_the_same_byte_for_every_cut(text: str) -> None:
    data = text.encode()
    assert not accepted(text)
    verdict, place, _ = read(data, [])
    assert verdict == "bad"
    assert all(read(data, cuts)[:2] == ("bad", place) for cuts in every_cut(data))
    with pytest.raises(InputError) as refused:
        parse_json(text)
    assert not isinstance(refused.value, JsonError) or refused.value.path == place[1], "both name the same value"


@pytest.mark.parametrize(
    "data",
    [
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\xe2\x82"',
        b'"\xf0\x80\x80\x80"',
        b"\xc3\xa9",
        b'"a\xc3',
        b'{"a":1\xe2\x82\xac}',
        b'"\\\xc3\xa9"',
    ],
)
def test_bytes_that_are_no_utf8_or_stand_outside_strings_are_refused(data: bytes) -> None:
    assert not accepted(data)
    assert {read(data, cuts)[0] for cuts in every_cut(data)} == {"bad"}


@pytest.mark.parametrize(
    ("text", "offset", "path"),
    [
        ('{"city":"Paris{"city":"Paris"}', 16, "/city"),
        ('{{"a":1}', 1, ""),
        ('{"a":"é","a', 12, ""),
        ('{"a":"é","a":1', 12, ""),
        ('{"x":{"y":[1,2,nul]}}', 18, "/x/y/2"),
        ('{"audit_passed":false":false', 21, "/audit_passed"),
        ('["\\ud83d', 8, "/0"),
        ('["\\ud83d\\u00', 10, "/0"),
        ("1e309", 4, ""),
    ],
)  # fmt: skip
def test_the_first_byte_that_cannot_lead_to_a_value_is_named(text: str, offset: int, path: str) -> None:
    stream = JsonStream()
    data = text.encode()
    try:
        stream.feed(data)
    except JsonError as error:
        assert (error.offset, error.path) == (offset, path)
        JsonStream().feed(data[:offset])  # everything before it can
    else:
        assert offset == len(data), "only the end is missing"
        with pytest.raises(JsonError, match="the end of the text"):
            stream.close()


def test_random_texts_and_random_cuts_get_the_verdict_and_value_of_the_whole_text_reader() -> None:
    random_ = random.Random(20261129)
    pieces = [
        *'{}[]:,"\\ u0123dcbafeE+-.tn\t',
        "true",
        "null",
        '"a"',
        '{"a":',
        "\\ud83d\\ude42",
        "\\ud83d",
        "1e308",
        "1e309",
        "é",
    ]
    good = 0
    for round_ in range(8_000):
        if round_ % 2:
            text = "".join(random_.choices(pieces, k=random_.randint(0, 12)))
        else:
            text = json.dumps(
                {"a": [1, -2.5e3, {"b": "x\ny🙂"}], "c": None, "d": [], "e": {}}, ensure_ascii=random_.random() < 0.5
            )
            at = random_.randrange(len(text))
            text = text[:at] + random_.choice(["", random_.choice(pieces)]) + text[at + random_.randint(0, 2) :]
        data = text.encode()
        verdict, value, _ = read(data, sorted(random_.choices(range(len(data) + 1), k=random_.randint(0, 4))))
        assert (verdict == "good") == accepted(text), text
        good += verdict == "good"
        assert verdict == "bad" or value == parse_json(text)
    assert good > 200


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1000, 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(JSON, st.booleans())
def test_partial_values_only_ever_grow_and_end_as_the_value(value: Json, ascii_only: bool) -> None:
    stream = JsonStream()
    before = stream.partial()
    for byte in json.dumps(value, ensure_ascii=ascii_only).encode():
        stream.feed(bytes([byte]))
        after = stream.partial()
        assert grown(before, after)
        before = after
    stream.close()
    assert grown(before, stream.partial()) and stream.partial() == whole(value)


def grown(before: Partial, after: Partial) -> bool:
    """Does `after` keep everything of `before`?"""
    if before.state == "complete":
        return before == after
    if before.state == "missing":
        return True
    if after.state == "missing" or not all(
        key in after.fields and grown(each, after.fields[key]) for key, each in before.fields.items()
    ):
        return False
    return not isinstance(before.value, str) or (isinstance(after.value, str) and after.value.startswith(before.value))


ORDER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "nights": {"$ref": "#/$defs/count"},
        "kind": {"enum": ["hotel", "hostel"]},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"count": {"type": "integer", "maximum": 9}},
}


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ('{"city":1', 8), ('{"town"', 6), ('{"city":"Lisbon!"', 15), ('{"city":"Lisb\\u006fn\\u0021', 25), ('{"nights":10,', 12), ('{"nights":"2"', 10),
        ('{"kind":"hotels"', 14), ('{"kind":"x', 9), ('{"kind":"ho"', 11), ('{"nights":2}', 11), ('{"tags":[1', 9), ('{"tags":["a","b","c"', 17), ("[", 0),
    ],
)  # fmt: skip
def test_what_a_schema_forbids_is_refused_at_the_first_byte_that_says_so(text: str, offset: int) -> None:
    data = text.encode()
    for cuts in every_cut(data):
        verdict, place, _ = read(data, cuts, schema=ORDER)
        assert (verdict, place[0]) == ("bad", offset), cuts
    JsonStream(ORDER).feed(data[:offset])


def test_members_that_have_not_come_are_missing_and_a_number_has_no_value_before_its_end() -> None:
    stream = JsonStream(ORDER)
    stream.feed(b'{"city":"Por')
    assert {name: each.state for name, each in stream.partial().fields.items()} == {
        "city": "partial", "nights": "missing", "kind": "missing", "tags": "missing",
    }  # fmt: skip
    stream.feed(b'to","nights":1')
    assert stream.partial().value == {"city": "Porto"} and stream.partial().fields["nights"] == Partial("partial")
    stream.feed(b"}")
    assert stream.is_complete and stream.close() == {"city": "Porto", "nights": 1}
    assert stream.partial().fields["kind"].state == "missing"


SCHEMAS: list[Json] = [
    True, False, {"type": ["integer", "null"]}, {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]},
    {"enum": ["", "a", 1, None, [0]]}, {"const": {}}, {"properties": {"a": {"type": "string"}}, "patternProperties": {"b": False}},
    {"additionalProperties": {"type": "integer"}}, {"items": {"type": "boolean"}, "prefixItems": [{"type": "null"}], "maxItems": 2},
    {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "null"}], "additionalItems": False},
    {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/a", "type": "null", "definitions": {"a": {"maxLength": 1}}},
    {"$schema": "http://json-schema.org/draft-07/schema#", "prefixItems": [{"type": "string"}]},  # says nothing in that draft
    {"$schema": "http://json-schema.org/draft-04/schema#", "const": "a", "additionalProperties": {"const": 1}},  # nor this
    {"items": {"$schema": "http://json-schema.org/draft-04/schema#", "const": 1}},
    {"allOf": [{"maxLength": 2}, {"minimum": 3}, {"required": ["a"]}]}, {"not": {"type": "string"}}, {"oneOf": [{"type": "number"}, {"minimum": 3}]},
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(SCHEMAS), JSON)
def test_the_verdict_under_a_schema_is_that_of_the_judge_on_the_whole_value(schema: Json, value: Json) -> None:
    verdict, _, _ = read(json.dumps(value).encode(), [], schema=schema)
    assert (verdict == "good") == (not SchemaJudge(schema, 1.0).violations(value, 1))


@pytest.mark.parametrize(
    ("draft", "schema"), [(4, {"const": "a"}), (4, {"prefixItems": [False]}), (6, {"prefixItems": [False]}), (7, {"prefixItems": [False]})]
)  # fmt: skip
def test_a_keyword_that_a_draft_does_not_have_refuses_nothing(draft: int, schema: dict[str, Json]) -> None:
    named = {"$schema": f"http://json-schema.org/draft-0{draft}/schema#", **schema}
    assert read(b'["b"]', [], schema=named)[0] == "good" and read(b'"b"', [], schema=named)[0] == "good"
    assert read(b'["b"]', [], schema={"properties": {"a": named}})[0] == "good"


def test_hostile_scalars_together_have_a_second_on_their_way_and_one_at_the_end() -> None:
    schema = {"items": {"anyOf": [{"pattern": "^(a|aa)+$"}, {"type": "string"}]}}  # every item fits, after a long search
    text = json.dumps(["a" * 26 + "b"] * 40).encode()
    stream, began = JsonStream(schema), time.thread_time()
    stream.feed(text)
    spent = time.thread_time() - began
    assert spent < EARLY_SECONDS + 4 * SEARCH_SECONDS, "the items were judged one by one, each with a clock of its own"
    with pytest.raises(JsonError, match="undecided"):
        stream.close()


LISTED = ["", "a", "ab", "abc", "b", "b\U0010ffff", "b\U0010ffff\U0010ffffx", "é", "éa", "b"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(LISTED), min_size=1, max_size=8), st.text(st.sampled_from("abcéx\U0010ffff"), max_size=5))
def test_a_listed_string_is_refused_at_the_first_character_that_none_of_the_list_has_there(
    listed: list[str], text: str
) -> None:
    left = next((n for n in range(len(text)) if not any(each.startswith(text[: n + 1]) for each in listed)), None)
    stream, data = JsonStream({"enum": listed}), json.dumps(text, ensure_ascii=False).encode()
    try:
        stream.feed(data)
        assert left is None and text in listed
    except JsonError as error:
        assert error.offset == (len(data) - 1 if left is None else 1 + len(text[:left].encode())) and text not in listed


def test_a_long_list_is_not_read_through_for_every_string() -> None:
    listed = [f"value {number:05d}" for number in range(4_000)]
    outline = Outline.of({"enum": listed})
    looked = 0

    class Counted(str):
        __slots__ = ()

        def __getitem__(self, at: Any) -> str:
            nonlocal looked
            looked += 1
            return super().__getitem__(at)

    outline.__dict__["sorted_texts"] = tuple(map(Counted, listed))
    early, note = EarlyJudge(outline, SchemaJudge(True, 1.0)), Note("begin", (), 0)
    assert early.violation(note, '"') is None
    assert early.violation(Note("text", (), 1, listed[1234]), f'"{listed[1234]}') is None and 0 < looked < 1_000


def test_a_refused_stream_is_spent_and_bad_schemas_and_text_instead_of_bytes_are_refused() -> None:
    stream = JsonStream()
    with pytest.raises(JsonError):
        stream.feed(b"{{")
    with pytest.raises(UsageError, match="new JsonStream"):
        stream.feed(b"1")
    with pytest.raises(SchemaError):
        JsonStream({"type": "nothing"})
    with pytest.raises(UsageError, match="bytes"):
        JsonStream().feed("{}")  # type: ignore[arg-type]


def test_size_and_depth_are_bounded() -> None:
    with pytest.raises(JsonError, match="longer than 10 bytes"):
        JsonStream(max_bytes=10).feed(b" " * 11)
    stream = JsonStream(max_bytes=10)
    stream.feed(b'"12345678')
    with pytest.raises(JsonError, match="longer than 10 bytes"):
        stream.feed("é".encode())
    with pytest.raises(JsonError, match="nested deeper than 3"):
        JsonStream(max_depth=3).feed(b"[[[[")


def test_a_schema_of_choices_in_choices_is_looked_into_in_bounded_time() -> None:
    doubling: dict[str, Any] = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**doubling, "d60": {"type": "integer"}}}
    outline = Outline.of(schema)
    assert (
        outline.types
        and outline.most_chars is None
        and Outline.of({"anyOf": [{"type": "null"}, {"maxLength": 3}]}).most_chars == 3
    )
    many = Outline.of({"type": "array", "items": {"anyOf": [{"type": "null"}] * 60}})
    assert many.child(0) is many.child(10_000) and many.child(0).types == {"null"}


@pytest.mark.parametrize("value", [None, True, 1, 1.0, 1.5, "", "aaaa", [], {}])
def test_an_outline_excludes_no_type_that_a_schema_allows(value: Json) -> None:
    for schema in SCHEMAS:
        assert SchemaJudge(schema, 1.0).violations(value, 1) or type_of(value) in Outline.of(schema).types


def test_a_stream_made_again_knows_its_schema_and_nothing_of_the_text_before() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    first = JsonStream(schema, max_bytes=20)
    first.feed(b'{"a":1')
    second = first.again()
    second.feed(b'{"a":2}')
    assert second.close() == {"a": 2} and first.feed(b"}") and first.close() == {"a": 1}
    with pytest.raises(JsonError, match="not allowed here"):
        first.again().feed(b'{"b"')
    with pytest.raises(JsonError, match="longer than 20 bytes"):
        first.again().feed(b" " * 21)
    assert JsonStream().again().feed(b"[1]")


def test_a_bound_may_be_written_as_a_fraction_that_is_an_integer() -> None:
    outline = Outline.of({"maxLength": 2.0, "maxItems": 1.0})
    assert (outline.most_chars, outline.most_items) == (2, 1) and isinstance(outline.most_chars, int)
