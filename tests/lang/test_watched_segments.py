"""free with a watch, tool_call written ahead: the verdict is in the meta info, an invalid text ends the program, policies try again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import sglang as sgl
from pydantic import BaseModel, field_validator

from tests.engine.remote.stub_server import Stub, listening
from tests.lang.lang_scripted import ScriptedEngine
from toolkit.contracts import Completion, Grammar, Request, Watch
from toolkit.engine.breaker import Breaker
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.errors import EngineError, NoValidError, SchemaError, TruncatedError, UnsupportedError, UsageError
from toolkit.gate.drill import echo_engine
from toolkit.gate.echo import prompt_of
from toolkit.gate.faults import rewrite
from toolkit.gate.records import SCHEMA, document
from toolkit.grammar.types import grammar_of
from toolkit.lang import EmbeddedBackend, Endpoint, beam, completion, free, result, tool_call, watch

OBJECT: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOLS = [{"name": "go", "parameters": {"properties": {"to": {"type": "string", "maxLength": 3}}, "required": ["to"]}}]
SOURCE = grammar_of(OBJECT).source
GOOD, BAD = '{"a":1}', '{"a":1}}'


def run(*segments: Any, backend: Any, **options: Any) -> Any:
    @sgl.function
    def program(s: Any) -> None:
        for segment in segments:
            s += segment

    return program.run(backend=backend, **options)


class Answers:
    """A scripted engine that gives these texts in turn."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.engine = ScriptedEngine(lambda prompt, request: self.texts.pop(0))
        self.backend = EmbeddedBackend(self.engine)


def test_what_a_text_has_to_be_reaches_the_engine_and_its_verdict_the_meta_info() -> None:
    asked = Answers(GOOD)
    state = run("Q", free("x", watch=watch(schema=OBJECT), max_tokens=9, json_schema=None), ".", backend=asked.backend)
    assert state.text() == f"Q{GOOD}." and asked.engine.seen[0].watch == Watch(kind="json", schema=SOURCE)
    assert (
        asked.engine.seen[0].grammar is None
        and asked.engine.seen[0].speculate
        and asked.engine.seen[0].sampling.max_tokens == 9
    )
    meta = state.get_meta_info("x")["toolkit"]
    assert (meta["valid"], meta["value"], meta["violations"], meta["incidents"], meta["attempts"]) == (
        True,
        {"a": 1},
        [],
        [],
        [],
    )
    json.dumps(meta)
    found = completion(state, "x")
    assert isinstance(found, Completion) and found.valid and found.value == {"a": 1}


@pytest.mark.parametrize("streamed", [False, True])
def test_a_text_that_is_not_valid_ends_the_program(streamed: bool) -> None:
    state = run("Q", free("x", watch=watch(schema=OBJECT)), free("y"), backend=Answers(BAD).backend, stream=streamed)
    with pytest.raises(NoValidError, match="no text is valid"):
        _ = state["x"]
    assert isinstance(state.error(), NoValidError) and state.error().texts == (BAD,)


@pytest.mark.parametrize("streamed", [False, True])
def test_whoever_wants_an_invalid_text_gets_it_with_what_is_wrong(streamed: bool) -> None:
    state = run("Q", free("x", watch=watch(schema=OBJECT), keep_invalid=True), backend=Answers(BAD).backend, stream=streamed)
    assert state["x"] == BAD and completion(state, "x").valid is False
    assert state.get_meta_info("x")["toolkit"]["violations"][0]["keyword"] == "json"


def test_policies_try_again_and_every_attempt_is_in_the_meta_info() -> None:
    asked = Answers(BAD, "[]", GOOD)
    segment = free("x", watch=watch(schema=OBJECT), policies=("plain", "constrained", "ask"))
    state = run("Q", segment, backend=asked.backend)
    assert state["x"] == GOOD and [request.speculate for request in asked.engine.seen] == [True, False, True]
    assert asked.engine.seen[2].grammar == Grammar("json_schema", SOURCE)
    attempts = state.get_meta_info("x")["toolkit"]["attempts"]
    assert [(each["policy"], each["text"], each["valid"]) for each in attempts] == [
        ("", BAD, False), ("plain", "[]", False), ("constrained", GOOD, True),
    ]  # fmt: skip


def test_where_no_policy_helps_the_error_has_the_fault_of_every_attempt() -> None:
    state = run("Q", free("x", watch=watch(schema=OBJECT), policies=["plain"]), backend=Answers(BAD, "[]").backend)
    with pytest.raises(NoValidError, match=r"first: .*; plain: .*\[\] is not of type 'object'"):
        completion(state, "x")


def test_a_segment_with_policies_streams_as_one_piece_that_is_the_text_that_stands() -> None:
    state = run(
        "Q", free("x", watch=watch(schema=OBJECT), policies=("plain",)), backend=Answers(BAD, GOOD).backend, stream=True
    )
    assert "".join(state.text_iter()) == f"Q{GOOD}" and len(completion(state, "x").attempts) == 2


def test_of_several_samples_one_has_to_be_valid() -> None:
    some = run("Q", free("x", watch=watch(schema=OBJECT), n=3), backend=Answers(BAD, GOOD, BAD).backend)
    assert some["x"] == [BAD, GOOD, BAD] and completion(some, "x").value == {"a": 1}
    none = run("Q", free("x", watch=watch(schema=OBJECT), n=2), backend=Answers(BAD, BAD).backend)
    assert isinstance(none.error() or none.sync() or none.error(), NoValidError)


class Age(BaseModel):
    a: int

    @field_validator("a")
    @classmethod
    def grown(cls, value: int) -> int:
        if value < 18:
            raise ValueError("too young")
        return value


def test_a_types_own_validators_have_the_last_word_here_as_well() -> None:
    assert run("Q", free("x", watch=watch(schema=Age)), backend=Answers('{"a":20}').backend)["x"] == '{"a":20}'
    state = run("Q", free("x", watch=watch(schema=Age)), backend=Answers('{"a":2}').backend)
    with pytest.raises(NoValidError, match="too young"):
        completion(state, "x")


def test_a_turn_of_tool_calls_and_a_block_of_code_may_be_watched() -> None:
    call = '<tool_call>{"name": "go", "arguments": {"to": "x"}}</tool_call>'
    state = run("Q", free("x", watch=watch(tools=TOOLS, format="hermes")), backend=Answers(f"So: {call}").backend)
    assert completion(state, "x").value == {
        "content": "So:", "reasoning": "", "calls": [{"name": "go", "arguments": {"to": "x"}}],
    }  # fmt: skip
    for code, text in (("python", "```python\nx = (1\n```"), ("json", "```json\n{'a': 1}\n```")):
        state = run("Q", free("x", watch=watch(code=code)), backend=Answers(text).backend)  # type: ignore[arg-type]
        with pytest.raises(NoValidError, match=r"\(root\)"):
            completion(state, "x")


def test_a_call_may_be_written_ahead_by_the_drafter() -> None:
    asked = Answers('{"name":"go","arguments":{"to":"x"}}')
    state = run("Q", tool_call("x", TOOLS, speculate=True, max_tokens=50), backend=asked.backend, temperature=0.9)
    assert completion(state, "x").value == {"name": "go", "arguments": {"to": "x"}}
    (request,) = asked.engine.seen
    assert request.beam is None and request.grammar is not None and request.speculate
    assert (request.sampling.temperature, request.sampling.max_tokens) == (0.0, 50)
    framed = run("Q", tool_call("x", TOOLS, speculate=True, format="hermes"), backend=Answers('{"name": "go", "arguments": {"to": "y"}}').backend)  # fmt: skip
    assert framed.text() == 'Q<tool_call>\n{"name": "go", "arguments": {"to": "y"}}\n</tool_call>'
    state = run("Q", tool_call("x", TOOLS, speculate=True), backend=Answers('{"name":"go","arguments":{}}').backend)
    with pytest.raises(NoValidError):
        completion(state, "x")


MISTAKES: list[tuple[Any, type[Exception], str]] = [
    (lambda: watch(), UsageError, "none of them"),
    (lambda: watch(schema=OBJECT, code="python"), UsageError, "schema and code"),
    (lambda: watch(tools=TOOLS), UsageError, "format goes with tools"),
    (lambda: watch(schema=OBJECT, format="hermes"), UsageError, "format goes with tools"),
    (lambda: watch(schema=OBJECT, choice="required"), UsageError, "choice"),
    (lambda: watch(tools=[], format="hermes"), UsageError, "non-empty list"),
    (lambda: watch(code="cobol"), UsageError, "python or json"),  # type: ignore[arg-type]
    (lambda: free("x", watch=watch(schema={"type": "nothing"})), SchemaError, "nothing"),
    (lambda: free("x", watch=watch(tools=TOOLS, format="nobody's")), UsageError, "nobody's"),
    (lambda: free("x", watch=watch(tools=TOOLS, format="hermes", choice="stop")), UsageError, "stop"),
    (lambda: free("x", policies=("plain",)), UsageError, "without a watch"),
    (lambda: free("x", keep_invalid=True), UsageError, "without a watch"),
    (lambda: free("x", watch=watch(schema=OBJECT), policies=("again",)), UsageError, "again"),  # type: ignore[arg-type]
    (lambda: free("x", watch=watch(schema=OBJECT), policies="ask"), UsageError, "a list of"),  # type: ignore[arg-type]
    (lambda: free("x", watch=watch(schema=OBJECT), regex="a"), UsageError, "regex"),
    (lambda: tool_call("x", TOOLS, policies=("ask",)), UsageError, "beam search"),
    (lambda: tool_call("x", TOOLS, speculate=True, width=8), UsageError, "width"),
    (lambda: tool_call("x", TOOLS, speculate=True, policies=("constrained",)), UsageError, "constrained already"),
    (lambda: tool_call("x", TOOLS, speculate=1), UsageError, "speculate"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("mistake", range(len(MISTAKES)))
def test_mistakes_are_refused_where_the_program_is_written(mistake: int) -> None:
    make, kind, said = MISTAKES[mistake]
    with pytest.raises(kind, match=said):
        make()


def test_each_kind_of_segment_is_asked_in_its_own_way() -> None:
    state = run(
        "Q", free("x"), beam("b", schema=OBJECT), "", backend=EmbeddedBackend(ScriptedEngine(lambda text, request: GOOD))
    )
    assert completion(state, "x").valid is None and result(state, "b").valid
    with pytest.raises(UnsupportedError, match="not sampled"):
        completion(state, "b")
    with pytest.raises(UsageError, match="the program has b, x"):
        completion(state, "z")


@pytest.fixture(scope="module", params=["embedded", "endpoint"])
def backend(request: pytest.FixtureRequest) -> Iterator[EmbeddedBackend]:
    """The tiny model, whose text is noise, in this process and behind a server."""
    served = Stub()
    with listening(served):
        opened = (
            EmbeddedBackend(model="tiny", format="float32", drafter="ngram", draft={"tokens": 2, "min_match": 1})
            if request.param == "embedded"
            else Endpoint(served.url, tokenizer=served.tokenizer)
        )
        yield opened
        opened.shutdown()


def test_on_both_engines_noise_is_no_json_and_cut_off_code_is_cut_off(backend: EmbeddedBackend) -> None:
    wrong = run("Q: ", free("x", watch=watch(schema=OBJECT), temperature=0, max_tokens=12), backend=backend)
    with pytest.raises(NoValidError):
        completion(wrong, "x")
    fence = run("Q: ", free("x", watch=watch(code="json"), temperature=0, max_tokens=1), backend=backend)
    with pytest.raises(TruncatedError, match="cut off after 1 tokens"):
        completion(fence, "x")


def test_a_guarded_segment_of_the_engine_itself_ends_valid_with_its_attempts() -> None:
    backend = EmbeddedBackend(model="tiny", format="float32", drafter="ngram", draft={"tokens": 2, "min_match": 1})
    try:
        segment = free(
            "x", watch=watch(schema={"enum": ["a", "b"]}), policies=("plain", "constrained"), temperature=0, max_tokens=20
        )
        found = completion(run("Q: ", segment, backend=backend), "x")
    finally:
        backend.shutdown()
    assert (
        found.valid and found.value in ("a", "b") and [each.policy for each in found.attempts] == ["", "plain", "constrained"]
    )


def test_broken_speculation_under_a_watched_segment_is_undone_and_told_in_the_meta_info(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The echo model copies its document; a verifier that doubles quotes would make `{""id"...`."""
    monkeypatch.setattr(rewrite, "CHANCE", 1.0)
    with echo_engine(breaker=Breaker(None)) as engine:
        rewrite.rewriting("quotes are doubled", lambda burst, dice: [x for t in burst for x in [t] * (1 + (t == 34))], engine)
        backend = _Prompted(engine, prompt_of(document(3).encode()))
        state = run(" ", free("x", watch=watch(schema=SCHEMA), temperature=0, max_tokens=200), backend=backend)
        meta = state.get_meta_info("x")["toolkit"]
        assert state["x"] == document(3) and meta["valid"]
        assert [(each["kind"], each["drafter"]) for each in meta["incidents"]] == [("speculation", "ngram")]


class _Prompted(EmbeddedBackend):
    """A backend whose segments all begin with the same ids: the echo model reads no text."""

    def __init__(self, engine: EmbeddedEngine, prompt: list[int]) -> None:
        super().__init__(engine)
        self._given = prompt

    def _request(self, s: Any, asked: Any) -> Request:
        return replace(super()._request(s, asked), prompt=self._given)


def test_a_stream_that_showed_what_is_not_the_text_is_an_error() -> None:
    """A text whose fault shows at its end only: what was streamed before cannot be taken back, so nobody may go on with it."""
    from toolkit.contracts import Delta, Done

    class Late(ScriptedEngine):
        def generate(self, requests: Any) -> Any:
            for request in requests:
                yield from (Delta(request.id, 0, letter, (ord(letter),)) for letter in '{"b":1}')
                yield Done(
                    request.id, 0, Completion(text=GOOD, token_ids=(1,), finish_reason="stop", valid=True, value={"a": 1})
                )

    state = run("Q", free("x", watch=watch(schema=OBJECT)), backend=EmbeddedBackend(Late()), stream=True)
    with pytest.raises(EngineError, match="after its text had been streamed"):
        "".join(state.text_iter())
    with pytest.raises(EngineError):
        _ = state["x"]
