"""beam, free and tool_call: they queue, fork, stream and batch as sgl.gen does, and never pass for something else."""

from __future__ import annotations

import enum
import json
import re
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from pydantic import BaseModel
from sglang.lang.backend.base_backend import BaseBackend

from tests.lang.lang_scripted import ScriptedEngine
from toolkit.contracts import BeamParams, BeamResult, Grammar, Request
from toolkit.errors import NoValidError, SchemaError, UnsupportedError, UsageError
from toolkit.lang import EmbeddedBackend, Segment, beam, free, result, tool_call

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


class Point(BaseModel):
    x: int


class Colour(enum.Enum):
    RED = "red"


def answer(text: str, request: Request) -> str:
    return '{"a":1}' if request.beam else "plain"


def run(*segments: Any, engine: ScriptedEngine | None = None, **options: Any) -> Any:
    @sgl.function
    def program(s: Any) -> None:
        for segment in segments:
            s += segment

    return program.run(backend=EmbeddedBackend(engine or ScriptedEngine(answer)), **options)


def test_a_beam_segment_is_text_and_a_result() -> None:
    state = run("Q:", beam("x", schema=OBJECT), ".")
    assert state.text() == 'Q:{"a":1}.' and state["x"] == '{"a":1}'
    found = result(state, "x")
    assert isinstance(found, BeamResult) and found.value == {"a": 1} and found.valid


def test_meta_info_of_a_beam_is_json_with_its_fields() -> None:
    meta = run(beam("x", schema=OBJECT)).get_meta_info("x")
    plain = json.loads(json.dumps(meta))
    assert plain["beam"]["value"] == {"a": 1} and plain["beam"]["confidence"] == {"/a": 0.5}
    assert {"value", "valid", "score", "alternatives", "confidence", "usage"} <= plain["beam"].keys()
    assert plain["beam"]["alternatives"][0].keys() >= {"value", "score", "sum_logprob", "valid"}
    assert meta["prompt_tokens"] == 3 and meta["completion_tokens"] == 2


def test_the_search_arrives_as_it_was_written() -> None:
    engine = ScriptedEngine(answer)
    run(
        beam("x", schema=OBJECT, width=6, alpha=0.5, penalty="gnmt", n=2, groups=3, diversity=0.5, max_tokens=9), engine=engine
    ).sync()
    request = engine.seen[0]
    assert request.beam == BeamParams(width=6, alpha=0.5, penalty="gnmt", n=2, groups=3, diversity=0.5, max_tokens=9)
    assert request.grammar is not None and json.loads(request.grammar.source) == OBJECT


def test_sampling_defaults_of_the_run_do_not_touch_a_beam() -> None:
    engine = ScriptedEngine(answer)
    assert result(run("Q", beam("x", schema=OBJECT), engine=engine, temperature=0.9, n=2, stop="}"), "x").value == {"a": 1}
    assert engine.seen[0].sampling.temperature == 0.0 and engine.seen[0].sampling.stop == ()


LANGUAGES: dict[str, tuple[dict[str, Any], str]] = {
    "schema": ({"schema": OBJECT}, "json_schema"),
    "pydantic": ({"schema": Point}, "json_schema"),
    "enum": ({"schema": Colour}, "json_schema"),
    "regex": ({"regex": "[0-9]+"}, "regex"),
    "compiled regex": ({"regex": re.compile("[a-z]+", re.IGNORECASE)}, "regex"),
    "lark": ({"grammar": 'start: "a"'}, "lark"),
    "grammar": ({"grammar": Grammar("regex", "a")}, "regex"),
    "choices": ({"choices": ["New", "New York"]}, "choices"),
}


@pytest.mark.parametrize("case", LANGUAGES)
def test_a_language_may_be_given_in_many_ways(case: str) -> None:
    options, kind = LANGUAGES[case]
    segment = beam("x", **options).sampling_params.json_schema
    assert isinstance(segment, Segment) and segment.grammar is not None and segment.grammar.kind == kind


def test_a_schema_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "thing.schema.json").write_text(json.dumps(OBJECT))
    monkeypatch.chdir(tmp_path)
    assert json.loads(beam("x", schema="thing").sampling_params.json_schema.grammar.source) == OBJECT
    with pytest.raises(UsageError, match="known are thing"):
        beam("x", schema="nothing")


def test_open_text_is_a_beam_without_a_language() -> None:
    assert beam("x").sampling_params.json_schema.grammar is None


MISTAKES: dict[str, dict[str, Any]] = {
    "schema and regex": {"schema": OBJECT, "regex": "a"},
    "choices": {"choices": []},
    "width": {"width": 0},
    "penalty": {"penalty": "none"},
    "name": {"name": ""},
}


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_are_refused_where_the_program_is_written(what: str) -> None:
    with pytest.raises(UsageError, match=what):
        beam(**{"name": "x", **MISTAKES[what]})


def test_a_beam_forks_and_joins() -> None:
    engine = ScriptedEngine(lambda text, request: json.dumps({"a": int(text[-1])}), together=3)

    @sgl.function
    def program(s: Any) -> list[Any]:
        s += "p"
        forks = s.fork(3)
        forks += lambda i: f"{i}" + beam("x", schema=OBJECT)
        found = [result(fork, "x").value for fork in forks.states]
        forks.join()
        return found

    state = program.run(backend=EmbeddedBackend(engine))
    assert state.ret_value == [{"a": 0}, {"a": 1}, {"a": 2}] and len(state["x"]) == 3


def test_a_beam_streams_as_one_piece() -> None:
    state = run("Q", beam("x", schema=OBJECT), stream=True)
    assert "".join(state.text_iter()) == 'Q{"a":1}' and result(state, "x").value == {"a": 1}


def test_beams_of_a_batch_come_in_order_though_their_schema_is_an_argument() -> None:
    @sgl.function
    def program(s: Any, text: str, schema: Any, tools: Any) -> None:
        s += text + beam("x", schema=schema) + tool_call("t", tools)

    engine = ScriptedEngine(lambda text, request: json.dumps({"a": text[0]}))
    tools = [{"name": "f", "parameters": {}}]
    states = program.run_batch(
        [{"text": c, "schema": OBJECT, "tools": tools} for c in "abc"], backend=EmbeddedBackend(engine)
    )  # fmt: skip
    assert [result(state, "x").value["a"] for state in states] == ["a", "b", "c"]


def test_no_valid_hypothesis_is_the_states_error() -> None:
    def none(text: str, request: Request) -> str:
        raise NoValidError("no hypothesis is valid", reasons=("too long",))

    state = run(beam("x", schema=OBJECT), engine=ScriptedEngine(none))
    with pytest.raises(NoValidError, match="no hypothesis"):
        result(state, "x")
    assert isinstance(state.error(), NoValidError)


class Stock(BaseBackend):  # type: ignore[misc]
    """A backend that knows nothing of this toolkit and drops the schema, as SGLang's OpenAI backend does."""

    def generate(self, s: Any, sampling_params: Any) -> tuple[str, dict[str, Any]]:
        return '{"a":1}', {"seen": sampling_params.json_schema}


def test_a_foreign_backend_cannot_pass_for_a_beam_search() -> None:
    state = sgl.function(lambda s: s.stream_executor.submit(beam("x", schema=OBJECT))).run(backend=Stock())
    with pytest.raises(UnsupportedError, match="'x' was not decoded by a beam search"):
        result(state, "x")


def test_what_a_server_gets_as_its_schema_is_a_sentence_not_a_schema() -> None:
    state = sgl.function(lambda s: s.stream_executor.submit(beam("x", schema=OBJECT))).run(backend=Stock())
    sent = str(state.get_meta_info("x")["seen"])
    assert "toolkit.lang.EmbeddedBackend" in sent
    with pytest.raises(json.JSONDecodeError):
        json.loads(json.loads(json.dumps(sent)))


def test_result_names_the_segments_there_are() -> None:
    state = run(beam("x", schema=OBJECT), free("y"))
    with pytest.raises(UsageError, match="the program has x, y"):
        result(state, "z")
    with pytest.raises(UnsupportedError, match="'y'"):
        result(state, "y")


def test_free_text_is_sampled_with_sglangs_parameters() -> None:
    engine = ScriptedEngine(answer)
    state = run("Q", free("x", max_tokens=5, temperature=0.5, stop="\n"), engine=engine)
    assert state["x"] == "plain" and engine.seen[0].beam is None
    sampling = engine.seen[0].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.stop) == (5, 0.5, ("\n",))


def test_a_segment_may_ask_to_be_decoded_without_the_drafter_and_keeps_its_parameters() -> None:
    engine = ScriptedEngine(answer)
    assert run("Q", free("x", max_tokens=5, speculate=False), free("y"), sgl.gen("z"), engine=engine)["z"] == "plain"
    assert [request.speculate for request in engine.seen] == [False, True, True]
    assert (engine.seen[0].beam, engine.seen[0].grammar, engine.seen[0].sampling.max_tokens) == (None, None, 5)
    with pytest.raises(UsageError, match="speculate"):
        free("x", speculate=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("constraint", [{"regex": "a"}, {"json_schema": "{}"}, {"dtype": int}, {"choices": ["a"]}])
def test_free_text_takes_no_constraint(constraint: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(constraint))):
        free("x", **constraint)


def weather(city: str, days: int = 1) -> str:
    """A tool as a function."""
    return f"{city} {days}"


def shop(**parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "shop", "description": "Buy.", "parameters": parameters}}


def calls(*tools: Any) -> Any:
    return json.loads(tool_call("x", list(tools)).sampling_params.json_schema.grammar.source)


def test_a_tool_call_is_one_of_the_tools_with_its_own_arguments() -> None:
    from jsonschema import Draft202012Validator

    check = Draft202012Validator(calls(weather, shop(type="object", properties={"n": {"type": "integer"}}, required=["n"])))
    assert check.is_valid({"name": "weather", "arguments": {"city": "Oslo"}})
    assert check.is_valid({"name": "shop", "arguments": {"n": 1}})
    for wrong in (
        {"name": "weather", "arguments": {"n": 1}},
        {"name": "shop", "arguments": {"n": 1, "extra": 2}},
        {"name": "shop", "arguments": {}},
        {"name": "sell", "arguments": {"n": 1}},
        {"name": "shop"},
    ):
        assert not check.is_valid(wrong)


def test_references_inside_a_tool_still_point_where_they_did() -> None:
    from jsonschema import Draft202012Validator

    nested = {
        "properties": {"a": {"$ref": "#/$defs/P"}, "b": {"$ref": "#/properties/a"}, "c": {"const": {"$ref": "#/$defs/P"}}},
        "$defs": {"P": {"type": "object", "properties": {"more": {"$ref": "#/$defs/P"}}, "additionalProperties": False}},
    }
    check = Draft202012Validator(calls(weather, shop(**nested)))
    good = {"name": "shop", "arguments": {"a": {"more": {"more": {}}}, "b": {}, "c": {"$ref": "#/$defs/P"}}}
    assert check.is_valid(good)
    assert not check.is_valid({"name": "shop", "arguments": {"a": {"more": {"other": 1}}}})
    assert nested["properties"]["a"] == {"$ref": "#/$defs/P"}


def test_arguments_that_are_named_elsewhere_are_not_shut_out() -> None:
    from jsonschema import Draft202012Validator

    check = Draft202012Validator(calls(shop(allOf=[{"properties": {"a": {"type": "integer"}}}])))
    assert check.is_valid({"name": "shop", "arguments": {"a": 1}})


TOOL_MISTAKES: dict[str, tuple[Any, type[Exception]]] = {
    "non-empty list": ([], UsageError),
    "more than once": ([weather, weather], UsageError),
    "not a function schema": ([{"parameters": {}}], UsageError),
    "a function schema or a Python function": ([3], UsageError),
    "tool name": ([{"name": "", "parameters": {}}], UsageError),
    "parameters of tool shop": ([shop(type="dict")], SchemaError),
    "parameters of tool f": ([{"name": "f", "parameters": [1]}], UsageError),
    "remote": ([shop(properties={"a": {"$ref": "https://example.org/x.json"}})], SchemaError),
}


@pytest.mark.parametrize("what", TOOL_MISTAKES)
def test_malformed_tools_are_refused_by_name(what: str) -> None:
    tools, kind = TOOL_MISTAKES[what]
    with pytest.raises(kind, match=what if what != "remote" else "example.org"):
        tool_call("x", tools)
