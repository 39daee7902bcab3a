"""Whatever a text, a schema or a pattern holds: a verdict, the same from both readers, in bounded work, and no exception."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.contracts import Grammar
from toolkit.errors import InputError, SchemaError
from toolkit.schema import MAX_DEPTH, JsonError, PatternError, compile_pattern, parse_json
from toolkit.validate.check import Validator
from toolkit.validate.json_stream import JsonStream

KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
SCALARS = st.none() | st.booleans() | st.integers(-99, 99) | KEYS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
HOLE = "\x02hole"  # no key or text of VALUES is so long


def refused(text: str, cut: int = 1) -> bool:
    """The verdict of the whole-text reader, which that of the stream must be for this cut."""
    try:
        parse_json(text)
        whole = False
    except InputError:
        whole = True
    stream, data = JsonStream(), text.encode("utf-8", "surrogatepass")
    try:
        for at in range(0, len(data), cut):
            stream.feed(data[at : at + cut])
        stream.close()
        assert not whole, text
    except JsonError:
        assert whole, text
    return whole


def around(draw: Any, inner: str) -> str:
    """A JSON text that holds `inner` where a value may stand."""
    value: Any = HOLE
    for _ in range(draw(st.integers(0, 4))):
        other = draw(VALUES)
        value = [other, value] if draw(st.booleans()) else {"k": other, "v": value}
    return json.dumps(value, ensure_ascii=draw(st.booleans())).replace(json.dumps(HOLE), inner)


@settings(max_examples=80, deadline=None)
@given(st.data(), KEYS, st.integers(1, 9))
def test_a_key_that_comes_twice_is_refused_however_it_is_written(data: st.DataObject, key: str, cut: int) -> None:
    escaped = '"' + "".join(f"\\u{unit:04x}" for unit in _units(key)) + '"'
    twice = [json.dumps(key), data.draw(st.sampled_from([escaped, json.dumps(key, ensure_ascii=False)]))]
    between = data.draw(st.sampled_from(["", ',"other key":[]']))
    assert refused(around(data.draw, f"{{{twice[0]}:1{between},{twice[1]}:2}}"), cut)
    assert not refused(around(data.draw, f"{{{twice[0]}:1,{json.dumps(key + '.')}:2}}"), cut)


def _units(text: str) -> list[int]:
    raw = text.encode("utf-16-be")
    return [int.from_bytes(raw[at : at + 2]) for at in range(0, len(raw), 2)]


@settings(max_examples=60, deadline=None)
@given(
    st.data(),
    st.sampled_from(
        ["NaN", "Infinity", "-Infinity", "1e999", "01", "+1", ".5", "1.", "0x1", "'a'", "undefined", "1_000", "True", "/**/1"]
    ),
    st.integers(1, 5),
)
def test_what_other_readers_take_for_numbers_and_words_is_refused_anywhere(data: st.DataObject, bad: str, cut: int) -> None:
    assert refused(around(data.draw, bad), cut)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(0xD800, 0xDFFF), st.sampled_from(["", "x", "\\n", "\\ud83d\\ude42", "é"]), st.integers(1, 7))
def test_half_a_surrogate_pair_is_no_character_wherever_it_stands(data: st.DataObject, half: int, rest: str, cut: int) -> None:
    for text in (f'"\\u{half:04x}{rest}"', f'{{"{rest}\\u{half:04X}":1}}'):
        assert refused(around(data.draw, text), cut)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3 * MAX_DEPTH), st.integers(0, 2**32), st.integers(1, 50))
def test_depth_is_refused_at_the_same_level_by_both_readers(depth: int, dice: int, cut: int) -> None:
    kinds = [bool(dice >> (level % 32) & 1) for level in range(depth)]
    text = "".join('{"a":' if kind else "[" for kind in kinds) + "1" + "".join("}" if kind else "]" for kind in reversed(kinds))
    assert refused(text, cut) == (depth > MAX_DEPTH)


NAMES = [f"n{i}" for i in range(5)]
REFS = st.sampled_from(["#", *(f"#/$defs/{name}" for name in NAMES)]).map(lambda target: {"$ref": target})
SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    REFS | st.sampled_from([True, {"type": "integer"}, {"type": "object"}, {"const": 1}, {"maxLength": 2}]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda each: {"anyOf": each}),
        st.lists(inner, min_size=1, max_size=2).map(lambda each: {"allOf": each}),
        inner.map(lambda each: {"items": each}),
        inner.map(lambda each: {"properties": {"a": each}, "additionalProperties": {"$ref": "#"}}),
        inner.map(lambda each: {"not": each}),
        st.tuples(inner, inner).map(lambda pair: {"if": pair[0], "then": pair[1]}),
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(SCHEMAS, min_size=5, max_size=5), SCHEMAS, VALUES)
def test_schemas_that_refer_to_each_other_are_refused_or_decided(definitions: list[Any], root: Any, value: Any) -> None:
    """Circles that never step into the value are refused; all others end, and the stream agrees with the validator."""
    schema = {"$defs": dict(zip(NAMES, definitions, strict=True)), "allOf": [root]}
    try:
        judge = Validator(Grammar("json_schema", json.dumps(schema)), seconds=0.2)
    except SchemaError as error:
        assert error.keyword == "$ref" and "leads back to itself" in str(error)
        return
    text = json.dumps(value)
    report = judge.check(text)
    if any(each.keyword == "undecided" for each in report.violations):
        return
    stream = JsonStream(schema)
    try:
        stream.feed(text.encode())
        stream.close()
        assert report.valid
    except JsonError:
        assert not report.valid


PIECES = st.sampled_from(
    ["a", "(a|a)*", "(a+)+", "(a*)*", "(?=a*)", "(.*)*", "[^b]*", "(a|aa)+", "\\1", "b?", "(?:a?){9}", "$", "^"]
)


@settings(max_examples=25, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=5).map("".join), st.integers(0, 40))
def test_a_hostile_pattern_gives_a_verdict_or_gives_up(pattern: str, length: int) -> None:
    try:
        compile_pattern(pattern)
    except PatternError:
        with pytest.raises(SchemaError, match="regular expression"):
            Validator(Grammar("json_schema", json.dumps({"pattern": pattern})))
        return
    judge = Validator(Grammar("json_schema", json.dumps({"pattern": pattern})), seconds=0.05)
    report = judge.check(json.dumps("a" * length + "!"))
    assert {each.keyword for each in report.violations} <= {"pattern", "undecided"}


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_at_all_get_a_verdict(data: bytes) -> None:
    stream = JsonStream({"type": "object", "additionalProperties": {"type": "string", "format": "date"}})
    try:
        stream.feed(data)
        stream.close()
    except JsonError as error:
        assert 0 <= error.offset <= len(data)
