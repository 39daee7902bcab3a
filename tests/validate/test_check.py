"""The validator: verdicts, records, and that nothing in a schema or a text can hang or crash it."""

from __future__ import annotations

import json
import threading
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator

from toolkit.contracts import Grammar, GrammarKind, Report, Violation
from toolkit.errors import SchemaError
from toolkit.grammar.types import grammar_of
from toolkit.schema import parse_json
from toolkit.validate.check import Validator
from toolkit.validate.spans import value_spans


def check(schema: Any, text: str) -> Report:
    return Validator(Grammar("json_schema", json.dumps(schema))).check(text)


def verdict(schema: Any, value: Any) -> bool:
    return check(schema, json.dumps(value)).valid


def test_a_violation_says_where_what_was_expected_and_what_was_found() -> None:
    schema = {"type": "object", "properties": {"a/b": {"type": "array", "items": {"type": "integer", "maximum": 3}}}}
    report = check(schema, '{"a/b":[1,9]}')
    assert report.value == {"a/b": [1, 9]}
    assert report.violations == (Violation("/a~1b/1", "maximum", "3", "9", "9 is greater than the maximum of 3"),)


def test_the_closest_branch_of_an_any_of_is_named() -> None:
    (violation,) = check({"anyOf": [{"type": "object", "required": ["q"]}, {"type": "string"}]}, '{"x":1}').violations
    assert violation.keyword == "anyOf"
    assert "'q' is a required property" in violation.message


def test_violations_and_what_they_show_are_bounded() -> None:
    report = check({"items": {"type": "null"}}, json.dumps(["x" * 5_000] * 500))
    assert len(report.violations) == 32
    assert all(len(field) <= 500 for each in report.violations for field in (each.found, each.expected, each.message))


@pytest.mark.parametrize(
    "text", ["", "{", '{"a":1}x', '{"a":1,"a":2}', '{"a":NaN}', '{"a":"\\ud800"}', "[" * 10_000, "1" * 5_000]
)
def test_a_text_that_is_no_strict_json_is_a_violation(text: str) -> None:
    report = check(True, text)
    assert (report.value, report.violations[0].keyword) == (None, "json")


@pytest.mark.parametrize(
    ("text", "path"),
    [('{"a":[1,{"b":1,"b":2}]}', "/a/1"), ('{"a":{"~/b":NaN}}', "/a/~0~1b"), ('[0,"\\ud800"]', "/1"), ("[1,2,", "/2"), ("[1}", "/0"), ("1 1", "")],
)  # fmt: skip
def test_a_text_that_is_no_json_is_refused_with_the_path_of_its_fault(text: str, path: str) -> None:
    (violation,) = check(True, text).violations
    assert violation.path == path and "line 1, column" in violation.message


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"multipleOf": 0.01}, [19.99, 0.07, 1, -0.5, 1e20], [0.125]),
        ({"multipleOf": 1e-8}, [12391239123], [1e-9]),
        ({"uniqueItems": True}, [[1, True], [[1], [True]], [{"a": 1}, {"a": 2}], []], [[1, 1.0], [{"a": 1, "b": 2}, {"b": 2, "a": 1}]]),
        ({"enum": [1]}, [1, 1.0], [True]),
        ({"type": "integer"}, [1, 1.0], [1.5, True]),
        ({"patternProperties": {"^a": {"type": "null"}}, "additionalProperties": False}, [{"ab": None}], [{"ab": 1}, {"b": None}]),
        ({"properties": {"a": True}, "additionalProperties": {"type": "null"}}, [{"a": 1, "b": None}], [{"b": 1}]),
        ({"allOf": [{"properties": {"a": True}}], "patternProperties": {"^b": True}, "unevaluatedProperties": False}, [{"a": 1, "bb": 1}], [{"c": 1}]),
        ({"anyOf": [{"required": ["a"], "properties": {"a": True}}, True], "unevaluatedProperties": {"type": "null"}}, [{"a": 1, "b": None}], [{"a": 1, "b": 1}]),
        ({"if": {"required": ["a"], "properties": {"a": {"const": 1}}}, "then": {"properties": {"b": True}}, "else": {"properties": {"c": True}}, "unevaluatedProperties": False}, [{"a": 1, "b": 1}, {"c": 1}], [{"a": 1, "c": 1}, {"b": 1}]),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"a": True}}}, "unevaluatedProperties": False}, [{"a": 1}], [{"b": 1}]),
        ({"dependentSchemas": {"a": {"properties": {"b": True}}}, "properties": {"a": True}, "unevaluatedProperties": False}, [{"a": 1, "b": 1}], [{"b": 1}]),
    ],
)  # fmt: skip
def test_restated_keywords_give_the_verdict_of_the_specification(schema: Any, good: list[Any], bad: list[Any]) -> None:
    assert [verdict(schema, each) for each in good] == [True] * len(good)
    assert [verdict(schema, each) for each in bad] == [False] * len(bad)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", "2024-02-29", "2023-02-29"),
        ("date-time", "2024-01-01T00:00:00Z", "2024-01-01 00:00"),
        ("time", "12:00:00Z", "25:00:00Z"),
        ("duration", "P1Y2DT3H", "1 year"),
        ("email", "a.b+c@example.co", "a@"),
        ("email", '"a b"@example.co', "a b@example.co"),
        ("hostname", "example.com", "-x.com"),
        ("ipv4", "127.0.0.1", "127.0.0.256"),
        ("ipv6", "::1", "12345::"),
        ("uri", "https://example.com/a?b#c", "//example.com"),
        ("uuid", "2eb8aa08-aa98-11ea-b4aa-73b441d16380", "2eb8aa08"),
        ("regex", "^a(b)$", "(" * 5_000),
        ("json-pointer", "/a~1b", "a"),
    ],
)
def test_formats_are_asserted(name: str, good: str, bad: str) -> None:
    assert verdict({"format": name}, good)
    assert not verdict({"format": name}, bad)
    assert not verdict({"format": name}, good * 10_000)
    assert verdict({"format": name}, 7)


def test_an_unknown_format_asserts_nothing() -> None:
    assert verdict({"format": "semver"}, "x")


def doubled(last: Any) -> Any:
    names = {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(40)}
    return {"$defs": names | {"a40": last}, "$ref": "#/$defs/a0"}


HOSTILE: list[tuple[Any, Any]] = [
    ({"pattern": "(a+)+$"}, "a" * 50 + "!"),
    ({"pattern": "^(a|a)*$"}, "a" * 50 + "!"),
    ({"$schema": "https://json-schema.org/draft/2020-12/schema", "pattern": "^(a|a)*$", "items": {"$ref": "#"}}, ["a" * 50 + "!"]),
    ({"items": {"$schema": "http://json-schema.org/draft-07/schema#", "$id": "http://x/y", "pattern": "^(a|a)*$"}}, ["a" * 50 + "!"]),
    ({"patternProperties": {"^(a|a)*$": True}, "additionalProperties": False}, {"a" * 50 + "!": 1}),
    ({"patternProperties": {"^(a|a)*$": True}, "unevaluatedProperties": False}, {"a" * 50 + "!": 1}),
    ({"propertyNames": {"pattern": "^(a|a)*$"}}, {"a" * 50 + "!": 1}),
    (doubled(False), 1),
    ({"uniqueItems": True}, [{"a": i} for i in range(20_000)] + [{"a": 0}]),
    ({"allOf": [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}}], "maxProperties": 1}, json.loads('{"a":' * 60 + '{"b":1,"c":1}' + "}" * 60)),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "value"), HOSTILE)
def test_what_cannot_be_decided_in_time_is_not_valid(schema: Any, value: Any) -> None:
    assert not verdict(schema, value)


def test_a_subschema_of_another_dialect_is_judged_by_its_own_keywords() -> None:
    """Draft 7 does not know prefixItems."""
    draft_7 = {
        "$id": "http://x/y",
        "$schema": "http://json-schema.org/draft-07/schema#",
        "prefixItems": [{"type": "null"}],
        "contains": {"multipleOf": 0.01},
    }
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "properties": {"a": draft_7}}
    assert [verdict(schema, {"a": [each]}) for each in (19.99, 0.125)] == [True, False]


def test_an_exploding_regex_is_not_valid() -> None:
    report = Validator(Grammar("regex", "(a|a)*"), seconds=0.05).check("a" * 60 + "!")
    assert "not decided" in report.violations[0].message


def test_regexes_and_choices_match_as_a_whole() -> None:
    regex = Validator(Grammar("regex", "^a|bc$"))
    assert [regex.check(text).valid for text in ("a", "bc", "ab", "a\n", "")] == [True, True, False, False, False]
    choices = Validator(Grammar("choices", '["New","New York"]'))
    assert [choices.check(text).valid for text in ("New", "New York", "New Y", "", '"New"')] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert choices.check("New").value == "New"
    assert Validator(Grammar("lark", "start: 'a'")).check("a").valid


@pytest.mark.parametrize(
    ("kind", "source"),
    [("json_schema", "{"), ("json_schema", '{"type":"x"}'), ("json_schema", '{"$ref":"http://a/b"}'), ("regex", "("), ("choices", "[]"), ("choices", "{")],
)  # fmt: skip
def test_a_bad_grammar_is_the_callers_error(kind: GrammarKind, source: str) -> None:
    with pytest.raises(SchemaError):
        Validator(Grammar(kind, source))


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


RAISED: dict[str, BaseException] = {
    "crash": RuntimeError("boom"),
    "deep": RecursionError("too deep"),
    "mute": MuteError(),
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt(),
}


class Order(BaseModel):
    item: str = Field(min_length=2)
    price: Decimal
    count: int = 1

    @field_validator("item")
    @classmethod
    def known(cls, item: str) -> str:
        if item == "unicorn":
            raise ValueError("no such item")
        if item in RAISED:
            raise RAISED[item]
        return item


def test_pydantic_has_its_say_after_the_schema() -> None:
    validator = Validator(grammar_of(Order))
    assert validator.check('{"item":"tea","price":"1.50"}').valid
    assert validator.check('{"item":"t","price":1}').violations[0].keyword == "minLength"
    (unicorn,) = validator.check('{"item":"unicorn","price":1}').violations
    assert (unicorn.path, unicorn.keyword, unicorn.found) == ("/item", "value_error", '"unicorn"')


@pytest.mark.parametrize(
    ("item", "message"),
    [("crash", "RuntimeError: boom"), ("deep", "RecursionError: too deep"), ("mute", "MuteError: (a MuteError that cannot be written)"), ("exit", "SystemExit: 3")],
)  # fmt: skip
def test_whatever_a_types_own_validator_raises_is_a_violation(item: str, message: str) -> None:
    report = Validator(grammar_of(Order)).check(json.dumps({"item": item, "price": 1}))
    assert report.value == {"item": item, "price": 1}
    assert [(each.keyword, each.message) for each in report.violations] == [("type", message)]


def test_an_interrupt_inside_a_types_own_validator_passes() -> None:
    with pytest.raises(KeyboardInterrupt):
        Validator(grammar_of(Order)).check('{"item":"interrupt","price":1}')


def test_one_validator_serves_many_threads() -> None:
    validator, results = Validator(Grammar("json_schema", '{"type":"integer"}')), list[bool]()
    threads = [
        threading.Thread(target=lambda n=n: results.append(validator.check(["1", '"x"'][n % 2]).valid == (n % 2 == 0)))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 8


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.integers() | st.none()), max_size=4))  # fmt: skip
def test_byte_spans_cut_out_their_values(value: dict[str, Any]) -> None:
    text = json.dumps(value, ensure_ascii=False)
    spans = value_spans(text)
    scalars = [each for items in value.values() for each in items]
    assert [parse_json(text.encode()[start:end]) for start, end in spans.values()] == scalars


def test_a_string_span_holds_its_quotes_and_counts_bytes() -> None:
    assert value_spans('{"é":"ü","b":[10]}') == {"/é": (6, 10), "/b/0": (16, 18)}


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("iri", "http://ƒøø.ßår/?∂éœ=πîx#πîüx", "/abc"),
        ("iri", "urn:é", "é:x"),
        ("iri-reference", "/âππ", "\\\\windows\\filëßåré"),
        ("uri", "http://foo.bar/?baz=qux#quux", "http://foo.bar/é"),
    ],
)
def test_identifiers_are_asserted_also_beyond_ascii(name: str, good: str, bad: str) -> None:
    validator = Validator(Grammar("json_schema", json.dumps({"format": name})))
    assert validator.check(json.dumps(good)).valid
    assert validator.check(json.dumps(bad)).violations[0].keyword == "format"
