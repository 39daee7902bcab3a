"""What people write for "this kind of output", as grammars."""

from __future__ import annotations

import datetime
import enum
import json
import re
import sys
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, Optional, TypedDict

import pytest
from pydantic import BaseModel, ConfigDict, Field

from toolkit.contracts import Grammar
from toolkit.errors import UnsupportedError, UsageError
from toolkit.grammar.compile import compile_grammar
from toolkit.grammar.types import grammar_of
from toolkit.text.tokenizer import ByteTokenizer
from toolkit.validate.check import Validator

TOKENIZER = ByteTokenizer()


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Node(BaseModel):
    name: str
    colour: Colour
    kids: list[Node] = Field(default_factory=list, max_length=2)


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


@dataclass
class Point:
    x: int
    y: float


class Row(TypedDict):
    a: int
    b: NotRequired[str]


def weather(city: str, days: int = 3, *, unit: Literal["c", "f"] = "c") -> str:
    raise AssertionError("a function given as a type must not be called")


def verdicts(source: object, text: str) -> tuple[bool, bool]:
    grammar = grammar_of(source)
    matcher, tokens = compile_grammar(grammar, TOKENIZER).matcher(), TOKENIZER.encode(text)
    good = matcher.accepts(tokens) == len(tokens)
    if good:
        matcher.advance(tokens)
    return good and matcher.is_accepting, Validator(grammar).check(text).valid


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        (Node, ['{"name":"a","colour":"red","kids":[{"name":"b","colour":"blue"}]}'], ['{"name":"a","colour":"green"}', '{"name":"a","colour":"red","x":1}']),
        (Open, ['{"a":1,"b":[]}'], ['{"b":1}']),
        (Point, ['{"x":1,"y":0.5}'], ['{"x":1}', '{"x":1,"y":1,"z":1}']),
        (Row, ['{"a":1}', '{"a":1,"b":"x"}'], ['{"b":"x"}']),
        (Colour, ['"red"'], ["red", '"green"']),
        (Literal["x", 1, None], ['"x"', "1", "null"], ['"y"']),
        (Optional[int], ["1", "null"], ['"1"']),  # noqa: UP045 - users write it
        (int | str, ["1", '"a"'], ["null"]),
        (int, ["-7"], ["1.5"]),
        (str, ['"é"'], ["é"]),
        (bool, ["true"], ["True", "1"]),
        (float, ["1.5", "2"], ["NaN"]),
        (datetime.date, ['"2024-02-29"'], ['"2024-02-30"']),
        (datetime.datetime, ['"2024-02-29T10:00:00Z"'], ['"2024-02-29"']),
        (list[int], ["[1,2]", "[]"], ['["a"]']),
        (dict[str, int], ['{"a":1}'], ['{"a":"b"}']),
        (tuple[int, str], ['[1,"a"]'], ["[1]"]),
        (weather, ['{"city":"x"}', '{"city":"x","days":1,"unit":"f"}'], ['{"days":1}', '{"city":"x","unit":"k"}', '{"city":"x","z":1}']),
        (["New", "New York"], ["New", "New York"], ["New Y"]),
        (re.compile("a.b", re.IGNORECASE), ["A-B"], ["a\nb"]),
        (re.compile("^a.b$", re.DOTALL), ["a\nb"], ["ab"]),
        ({"type": "null"}, ["null"], ["1"]),
        (True, ["null", "1"], ["x"]),
    ],
)  # fmt: skip
def test_a_type_becomes_a_grammar_and_a_validator(source: object, good: list[str], bad: list[str]) -> None:
    assert {text: verdicts(source, text) for text in good} == dict.fromkeys(good, (True, True))
    assert {text: verdicts(source, text) for text in bad} == dict.fromkeys(bad, (False, False))


def test_an_outlines_type_becomes_a_grammar() -> None:
    from outlines import types as ot

    for source, good, bad in [
        (ot.integer, "-12", "1.5"),
        (ot.Choice(["a", "ab b"]), "ab b", "ab"),
        (ot.Regex("[0-9]+(\\.[0-9]+)?"), "1.25", "1."),
        (ot.Regex("a|b") + " c", "b c", "b"),
        (ot.at_least(2, ot.Regex("x")), "xxx", "x"),
        (ot.json_schema({"type": "null"}), "null", "1"),
        (ot.cfg('start: "a" "b"?'), "ab", "b"),
    ]:
        assert verdicts(source, good)[0], good
        assert not verdicts(source, bad)[0], bad
    with pytest.raises(UnsupportedError, match="whitespace_pattern"):
        grammar_of(ot.JsonSchema({"type": "null"}, whitespace_pattern=" *"))


def test_an_outlines_without_terms_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from outlines import types as ot

    monkeypatch.setitem(sys.modules, "outlines.types", None)
    with pytest.raises(UnsupportedError, match=r"1\.x"):
        grammar_of(ot.integer)


def test_enums_and_literals_give_bare_text_when_asked_for_choices() -> None:
    assert (
        grammar_of(Colour, kind="choices")
        == grammar_of(Literal["red", "blue"], kind="choices")
        == Grammar("choices", '["red","blue"]')
    )
    with pytest.raises(UsageError, match="choices"):
        grammar_of(int, kind="choices")
    with pytest.raises(UsageError, match="choices"):
        grammar_of(Literal["a", 1], kind="choices")


def test_text_needs_a_kind_and_keeps_it() -> None:
    assert grammar_of("a+", kind="regex") == Grammar("regex", "a+")
    for source, kind in [("a+", None), ("a+", "xml"), ({}, "regex")]:
        with pytest.raises(UsageError, match="kind"):
            grammar_of(source, kind=kind)  # type: ignore[arg-type]


def test_the_order_of_properties_is_the_authors() -> None:
    assert list(json.loads(grammar_of({"properties": {"z": {}, "a": {}}}).source)["properties"]) == ["z", "a"]
    assert list(json.loads(grammar_of(weather).source)["properties"]) == ["city", "days", "unit"]


def positional(a: int, /) -> None: ...


def variadic(*a: int) -> None: ...


@pytest.mark.parametrize(
    "source", [5, None, object(), positional, variadic, [], [1], {1, 2}, {"a": float("nan")}, re.compile(b"a"), re.compile("a", re.ASCII), sys]
)  # fmt: skip
def test_what_describes_no_output_is_refused(source: Any) -> None:
    with pytest.raises(UsageError):
        grammar_of(source)
