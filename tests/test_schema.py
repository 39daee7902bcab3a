"""Strict JSON reading and schema documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.grammar import hostile
from toolkit.errors import InputError, SchemaError, UsageError
from toolkit.schema import (
    MAX_DEPTH,
    PatternError,
    check_schema,
    compile_pattern,
    compile_regex,
    draft_of,
    load_schema,
    parse_json,
    read_spans,
    schema_of,
    value_key,
)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(VALUES, st.sampled_from([None, 1]), st.booleans())
def test_whatever_json_writes_is_read_back(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert parse_json(text) == value == parse_json(text.encode())
    assert repr(parse_json(text)) == repr(value)


@given(st.text(alphabet='{}[]:,"\\ \n0123456789.eE+-truefalsn\u00e9', max_size=30))
def test_the_reader_accepts_only_what_the_standard_library_accepts(text: str) -> None:
    try:
        value = parse_json(text)
    except InputError:
        return
    assert json.loads(text) == value


@given(VALUES)
def test_every_span_is_the_text_of_its_value(value: Any) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False)
    spans = read_spans(text)
    assert parse_json(text[spans[""].start : spans[""].end]) == value
    for pointer, span in spans.items():
        part = parse_json(text[span.start : span.end])
        assert part == at(value, pointer)
        assert span.container == isinstance(part, dict | list)


@given(VALUES, VALUES)
def test_values_have_one_key_exactly_where_they_are_the_same(a: Any, b: Any) -> None:
    assert value_key(a) == value_key(json.loads(json.dumps(a, sort_keys=True)))
    assert (value_key(a) == value_key(b)) == (hash(value_key(a)) == hash(value_key(b)) and same(a, b))


def same(a: Any, b: Any) -> bool:
    """The slow twin of `value_key`, member by member."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (1, 1.0, True),
        (0.0, -0.0, True),
        (2**60, float(2**60), True),
        ({"a": 1, "b": [2]}, {"b": [2.0], "a": 1.0}, True),
        (1, True, False),
        (0, False, False),
        ([0], [False], False),
        ({"a": True}, {"a": 1}, False),
        ([1, 2], [2, 1], False),
        (1, "1", False),
        (None, "null", False),
        ([], {}, False),
        ([["a", 1]], {"a": 1}, False),
    ],
)
def test_one_is_one_point_zero_but_not_true(a: Any, b: Any, equal: bool) -> None:
    assert (value_key(a) == value_key(b)) == equal == same(a, b)


def at(value: Any, pointer: str) -> Any:
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


@pytest.mark.parametrize(
    ("text", "line", "column", "why"),
    [
        ('{"a":1,\n "a":2}', 2, 2, "comes twice"),
        ('{"a":{"b":1,"b":2}}', 1, 13, "comes twice"),
        ("[NaN]", 1, 2, "found 'N'"),
        ("-Infinity", 1, 1, "found '-'"),
        ("1e400", 1, 1, "outside the range"),
        ('"\\ud83d"', 1, 1, "surrogate"),
        ('"\\ude00\\ud83d"', 1, 1, "surrogate"),
        ('"\t"', 1, 1, "control character"),
        ('"\\x41"', 1, 1, "bad escape"),
        ("[1,]", 1, 4, "expected a value"),
        ('{"a":1,}', 1, 8, "as key"),
        ("[1 2]", 1, 4, "closing bracket"),
        ("[1}", 1, 3, "closing bracket"),
        ("1 2", 1, 3, "end of the text"),
        ("{1:2}", 1, 2, "as key"),
        ('{"a" 1}', 1, 6, "':'"),
        ("01", 1, 2, "end of the text"),
        ("1.", 1, 2, "found '.'"),
        (".5", 1, 1, "found '.'"),
        ("+1", 1, 1, "found '+'"),
        ("'a'", 1, 1, "found"),
        ("", 1, 1, "expected a value"),
        ("[" * (MAX_DEPTH + 1), 1, MAX_DEPTH + 1, "nested deeper"),
        ("[" + "1" * 309 + "]", 1, 2, "309 digits"),
        ("\u00a01", 1, 1, "found"),
    ],
)
def test_bad_text_is_refused_where_it_goes_wrong(text: str, line: int, column: int, why: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_json(text)
    assert f"line {line}, column {column} " in caught.value.message
    assert why in caught.value.message


def test_bombs_are_refused_without_recursion() -> None:
    assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    for text in ("[" * 10**6, '{"a":' * 10**5, '[{"a":' * 10**5):
        with pytest.raises(InputError, match="nested deeper"):
            parse_json(text)
    with pytest.raises(InputError, match="too long"):
        parse_json(" " * 11, max_chars=10)


@pytest.mark.parametrize(
    ("data", "why"), [(b"\xff", "UTF-8"), (b'"\xed\xa0\x80"', "UTF-8"), (b"\xef\xbb\xbf1", "byte order mark")]
)
def test_bytes_that_are_no_plain_utf8_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(InputError, match=why):
        parse_json(data)


def test_a_schema_is_found_by_name_and_by_path(tmp_path: Path) -> None:
    folder = tmp_path / "schemas"
    folder.mkdir()
    (folder / "invoice.schema.json").write_text('{"type":"object"}')
    (folder / "broken.schema.json").write_text('{"type":"objekt"}')
    assert load_schema("invoice", tmp_path) == load_schema(folder / "invoice.schema.json") == {"type": "object"}
    with pytest.raises(UsageError, match="known are broken, invoice"):
        load_schema("invoyce", tmp_path)
    with pytest.raises(SchemaError, match="objekt"):
        load_schema("broken", tmp_path)
    with (folder / "endless.schema.json").open("wb") as file:
        file.truncate(1 << 36)  # a hole: it takes no room on the disk, and would take 64 GB of memory
    with pytest.raises(InputError, match="has more than 16777216 bytes"):
        load_schema("endless", tmp_path)


@pytest.mark.parametrize("value", [[], 1, "x", None])
def test_a_schema_is_an_object_or_a_boolean(value: Any) -> None:
    with pytest.raises(SchemaError, match="object, true or false"):
        check_schema(value)


def test_references_are_resolved_inside_the_document_only() -> None:
    check_schema(
        {"$id": "http://example.com/a/root", "$ref": "b", "$defs": {"b": {"$id": "b", "$anchor": "x"}, "c": {"$ref": "b#x"}}}
    )
    check_schema({"$defs": {"tree": {"properties": {"kids": {"items": {"$ref": "#/$defs/tree"}}}}}, "$ref": "#/$defs/tree"})
    check_schema({"enum": [{"$ref": "http://example.com/not-a-reference"}], "properties": {"$ref": {"type": "string"}}})
    check_schema({"$ref": "https://json-schema.org/draft/2020-12/schema"})
    for reference in (
        "http://example.com/x",
        "other.json",
        "file:///etc/passwd",
        "#/$defs/none",
        "#none",
        "/$defs/b",
        "#/$defs/b/-1",
    ):
        with pytest.raises(SchemaError, match=r"nothing is fetched|leads nowhere|cannot be read") as caught:
            check_schema({"items": {"$ref": reference}, "$defs": {"b": {}}})
        assert (caught.value.path, caught.value.keyword) == ("/items", "$ref")


def test_a_deep_schema_is_refused_and_does_not_overflow() -> None:
    value: Any = {}
    for _ in range(3_000):
        value = {"not": value}
    with pytest.raises(SchemaError, match=r"too deep|too large"):
        check_schema(value)


HUGE: dict[str, Any] = {
    name: hostile.SCHEMAS[name] for name in ("many constants", "many names", "many patterns", "many references")
}
HUGE["one long constant"] = {"const": [1] * 500_000}


@pytest.mark.parametrize("name", HUGE)
def test_a_schema_too_large_to_check_is_refused(name: str) -> None:
    with pytest.raises(SchemaError, match="too large to be checked"):
        schema_of(json.dumps(HUGE[name]))


def test_a_long_list_of_objects_is_compared_in_linear_time() -> None:
    value = {"$schema": "http://json-schema.org/draft-04/schema#", "enum": [{"a": i} for i in range(20_000)]}
    check_schema(value)
    with pytest.raises(SchemaError, match="are the same"):
        check_schema({**value, "enum": [*value["enum"], {"a": 0}]})


def test_drafts_are_told_apart() -> None:
    assert draft_of({}) is draft_of({"$schema": "https://json-schema.org/draft/2020-12/schema"})
    assert draft_of({"$schema": "http://json-schema.org/draft-07/schema#"}).uri.endswith("draft-07/schema")


def test_a_schema_text_is_checked_once() -> None:
    assert schema_of('{"type":"null"}') is schema_of('{"type":"null"}')
    with pytest.raises(SchemaError, match="not JSON"):
        schema_of('{"type":"null","type":"null"}')


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("^a$", ["a"], ["a\n", "ab", "ba"]),
        ("a.b", ["a-b", "xa b"], ["a\nb", "a\rb", "a\u2028b"]),
        (r"^\d+$", ["12"], ["\u0661", ""]),
        (r"^\w$", ["a", "_"], ["é", "-"]),
        (r"^\W$", ["é", "-", "\U0001f600"], ["a"]),
        (r"^[\W\d]$", ["é", "1", "[", "^", "]", "\\"], ["a", "_"]),
        (r"^\s$", ["\ufeff", "\u2003", "\t"], ["a"]),
        (r"^[\S]$", ["a"], ["\u00a0", " "]),
        (r"^\p{L}+$", ["éa"], ["1"]),
        (r"^\cI$", ["\t"], ["I"]),
        (r"^\u{1F600}$", ["\U0001f600"], ["u"]),
        (r"^\u00e9$", ["é"], ["e"]),
        (r"^[^]$", ["\n"], [""]),
        (r"^[]$", [], ["", "]"]),
        (r"^[[a]$", ["[", "a"], ["b"]),
        (r"(?<n>.)\k<n>", ["aa"], ["ab"]),
        (r"^(?!a)", ["b", ""], ["a"]),
        (r"^\$\.$", ["$."], ["a"]),
        (r"\/", ["/"], ["\\"]),
    ],
)
def test_patterns_mean_what_ecma_262_says(pattern: str, good: list[str], bad: list[str]) -> None:
    for text, expected in [(each, True) for each in good] + [(each, False) for each in bad]:
        assert (compile_pattern(pattern).search(text, timeout=1.0) is not None) == expected, text


def test_a_pattern_that_explodes_gives_up() -> None:
    with pytest.raises(TimeoutError):
        compile_pattern("^(a|a)*$").search("a" * 50 + "!", timeout=0.05)


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "(" * 2_000 + ")" * 2_000, "x" * 20_001, "[b-a]", "(?P<a>"])
def test_what_is_no_regular_expression_is_refused(pattern: str) -> None:
    for compiles in (compile_pattern, compile_regex):
        with pytest.raises(PatternError):
            compiles(pattern)
