"""Grammars of tool calls: whatever is decoded under one is read back by the format's own parser as calls without errors."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from toolkit.contracts import Grammar
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.errors import SchemaError, UnsupportedError, UsageError
from toolkit.grammar.compile import compile_grammar
from toolkit.grammar.mask import allocate, unpack
from toolkit.text.tokenizer import ByteTokenizer
from toolkit.validate.check import Validator
from toolkit.validate.tools.grammar import call_grammar, tools_grammar
from toolkit.validate.tools.offered import ToolSet
from toolkit.validate.tools.stream import tool_stream
from toolkit.validate.tools.table import FORMATS, format_named

PARAMETERS: dict[str, Any] = {
    "properties": {
        "to": {"type": "string", "maxLength": 5},
        "kind": {"enum": ["fast", "slow"]},
        "nights": {"type": "integer", "minimum": 1, "maximum": 9},
        "flag": {"type": "boolean"},
        "where": {"$ref": "#/$defs/place"},
        "either": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 3}]},
    },
    "required": ["to", "nights"],
    "$defs": {
        "place": {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": False}
    },
}
TOOLS = ToolSet([{"name": "book", "parameters": PARAMETERS}, {"name": "ping"}])
WRITABLE = [name for name in FORMATS if name != "openai"]
BYTES = ByteTokenizer()
# Bytes that make trouble, so that a walk over all 256 meets it.
LURES = [b"<", b"/", b"\n", b'"', b"\\", b"}", b"]", b">", b"\xc3", b"<", b"0", b"-"]


def walk(grammar: Grammar, random_: random.Random) -> str:
    """A random text of a grammar: half the choices lean to bytes that close or break things."""
    matcher = compile_grammar(grammar, BYTES).matcher()
    mask = allocate(1, BYTES.vocab_size)
    ids: list[int] = []
    while len(ids) < 600:
        matcher.fill(mask, 0)
        allowed = np.flatnonzero(unpack(mask, BYTES.vocab_size)[0])
        if matcher.is_accepting and (len(allowed) == 1 or random_.random() < 0.5):
            return b"".join(map(BYTES.token_bytes, ids)).decode()
        choices = [int(each) for each in allowed if each not in BYTES.eos_ids]
        lures = [each for each in choices if bytes([each]) in LURES]
        ids.append(random_.choice(lures if lures and random_.random() < 0.5 else choices))
        matcher.advance(ids[-1:])
    raise AssertionError("the walk did not end: a bound is missing")


@pytest.mark.parametrize("name", WRITABLE)
def test_every_text_of_a_grammar_of_tools_is_read_back_as_calls(name: str) -> None:
    random_ = random.Random(name)
    grammar = tools_grammar(name, TOOLS, parallel=3)
    counts = set()
    for _ in range(25):
        text = walk(grammar, random_)
        stream = tool_stream(name, TOOLS, choice="required", parallel=3)
        stream.feed(text.encode())
        result = stream.close()
        assert result.valid and not result.content, (text, result.errors)
        counts.add(len(result.calls))
        assert Validator(grammar).check(text).value == [
            {"name": each.name, "arguments": each.arguments} for each in result.calls
        ]
    assert counts == {1, 2, 3}


@pytest.mark.parametrize("name", WRITABLE)
def test_every_body_of_a_call_has_the_call_as_its_value(name: str) -> None:
    random_ = random.Random(name)
    grammar = call_grammar(name, TOOLS)
    for _ in range(15):
        text = walk(grammar, random_)
        report = Validator(grammar).check(text)
        assert report.valid, (text, report.violations)
        assert not TOOLS[report.value["name"]].violations(report.value["arguments"])
        before, after = format_named(name).frame
        stream = tool_stream(name, TOOLS)
        stream.feed((before + text + after).encode())
        assert [each.arguments for each in stream.close().calls] == [report.value["arguments"]]


@pytest.mark.parametrize("name", WRITABLE)
def test_what_a_format_writes_is_in_its_grammar(name: str) -> None:
    calls = [("book", {"to": "São", "kind": "slow", "nights": 3, "flag": True, "where": {"x": 2}}), ("ping", dict[str, Any]())]
    text = format_named(name).write(*calls)
    matcher = compile_grammar(tools_grammar(name, TOOLS, parallel=2), BYTES).matcher()
    ids = BYTES.encode(text)
    assert matcher.accepts(ids) == len(ids)
    matcher.advance(ids)
    assert matcher.is_accepting and matcher.is_stopped


@pytest.mark.parametrize("name", WRITABLE)
def test_what_a_model_decodes_under_a_grammar_of_tools_is_read_back(tiny: EmbeddedEngine, name: str) -> None:
    short = ToolSet(
        [{"name": "go", "parameters": {"properties": {"to": {"type": "string", "maxLength": 3}}, "required": ["to"]}}]
    )
    grammar = tools_grammar(name, short, choice="go")
    for options in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 1}, {"temperature": 1.0, "seed": 2}):
        done = tiny.complete("Go.", grammar=grammar, max_tokens=200, **options)
        assert done.finish_reason in ("grammar", "stop")
        stream = tool_stream(name, short, choice="go")
        stream.feed(done.text.encode())
        result = stream.close()
        assert result.valid and [each.name for each in result.calls] == ["go"], (done.text, result.errors)
    found = tiny.beam("Go.", grammar=call_grammar(name, short), width=3, max_tokens=120)
    assert found.valid and found.value["name"] == "go" and len(found.value["arguments"]["to"]) <= 3
    assert all(each.value.keys() == {"name", "arguments"} for each in found.alternatives if each.valid)


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45"])
@pytest.mark.parametrize("most", [3, 1_000, 100_000])
def test_a_text_with_a_long_bound_may_hold_what_looks_like_its_closing_tag(name: str, most: int) -> None:
    parameters = {"properties": {"a": {"type": "string", "maxLength": most}, "b": {"type": "string"}}}
    compiled = compile_grammar(call_grammar(name, [{"name": "f", "parameters": parameters}]), BYTES)
    for text in ("", "\n", "</", "</parameter</arg_value<"[:most], "x" * min(most, 500)):
        ids, matcher = BYTES.encode(format_named(name).body("f", {"a": text, "b": "y"})), compiled.matcher()
        for token in ids:
            matcher.fill(allocate(1, BYTES.vocab_size), 0)
            matcher.advance([token])
        assert matcher.is_accepting
    too_long = BYTES.encode(format_named(name).body("f", {"a": "x" * (most + 1)}))
    assert compiled.matcher().accepts(too_long) < len(too_long)


@pytest.mark.slow
def test_what_a_real_model_decodes_under_a_grammar_of_tools_is_read_back_though_its_tokens_cross_the_marks() -> None:
    weather = ToolSet([{"name": "weather", "parameters": {"properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["city", "days"]}}])  # fmt: skip
    with EmbeddedEngine("smollm2") as engine:
        for name in WRITABLE:
            shots = [("Lima", 2), ("Oslo", 4)]
            prompt = "".join(
                f"{city}, {days} days: {format_named(name).write(('weather', {'city': city, 'days': days}))}\n"
                for city, days in shots
            )
            done = engine.complete(prompt + "Rome, 3 days: ", grammar=tools_grammar(name, weather), max_tokens=120)
            stream = tool_stream(name, weather, choice="required", parallel=1)
            stream.feed(done.text.encode())
            result = stream.close()
            assert result.valid and [each.arguments for each in result.calls] == [{"city": "Rome", "days": 3}], (
                name,
                done.text,
            )


def test_one_tool_may_be_forced_and_free_choices_have_no_grammar() -> None:
    source = tools_grammar("hermes", TOOLS, choice="ping").source
    assert "ping" in source and "book" not in source
    for choice in ("auto", "none"):
        with pytest.raises(UnsupportedError, match=choice):
            tools_grammar("hermes", TOOLS, choice=choice)
    with pytest.raises(UsageError, match="required, book, ping"):
        tools_grammar("hermes", TOOLS, choice="other")
    with pytest.raises(UsageError, match="parallel"):
        tools_grammar("hermes", TOOLS, parallel=0)
    with pytest.raises(UnsupportedError, match="openai"):
        call_grammar("openai", TOOLS)


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45"])
def test_what_tagged_text_cannot_enforce_is_partial_and_judged(name: str) -> None:
    tools = ToolSet(
        [
            {
                "name": "f",
                "parameters": {"properties": {"a": {"type": "string", "pattern": "^x", "maxLength": 2}}, "minProperties": 1},
            }
        ]
    )
    grammar = call_grammar(name, tools)
    assert grammar.partial == ("f: minProperties", "f/a: pattern")
    assert compile_grammar(grammar, BYTES).partial == grammar.partial
    wrong = format_named(name).body("f", {"a": "y"})
    assert [each.path for each in Validator(grammar).check(wrong).violations] == ["/arguments/a"]
    assert Validator(grammar).check(format_named(name).body("f", {"a": "xy"})).value == {"name": "f", "arguments": {"a": "xy"}}


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45", "deepseek"])
def test_what_a_format_cannot_write_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedError, match=r"'a>b' cannot be written"):
        call_grammar(name, [{"name": "a>b"}])
    if name != "deepseek":
        closing = "</parameter>" if name == "qwen3_coder" else "</arg_value>"
        with pytest.raises(UnsupportedError, match=closing):
            call_grammar(name, [{"name": "f", "parameters": {"properties": {"a": {"enum": [f"x{closing}"]}}}}])
        with pytest.raises(UnsupportedError, match="requires b"):
            call_grammar(name, [{"name": "f", "parameters": {"required": ["b"]}}])
    with pytest.raises(SchemaError):
        compile_grammar(
            tools_grammar("hermes", [{"name": "f", "parameters": {"properties": {"a": {"not": {"minimum": 3}}}}}]), BYTES
        )


def test_a_mark_that_is_a_control_token_is_refused_by_name_and_inside_a_schema_it_is_data() -> None:
    with pytest.raises(UnsupportedError, match=r"<\|end\|>.*around the segment"):
        compile_grammar(Grammar("lark", 'start: "a<|end|>"'), BYTES)
    schema = json.dumps({"const": "<|end|>"})
    assert compile_grammar(Grammar("lark", f"start: %json {schema}"), BYTES).matcher().accepts(BYTES.encode('"<|end|>"')) == 9
