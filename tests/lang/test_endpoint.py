"""The front end over a server: every kind of segment gives what it gives on the embedded engine, on a stub with the same model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import sglang as sgl
from sglang.lang.choices import greedy_token_selection, token_length_normalized, unconditional_likelihood_normalized

from tests.engine.remote.stub_server import Stub, listening
from toolkit.errors import EngineError, UsageError
from toolkit.lang import EmbeddedBackend, Endpoint, beam, free, result, tool_call

OBJECT = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def stub() -> Iterator[Stub]:
    served = Stub()
    with listening(served):
        yield served


@pytest.fixture(scope="module")
def backends(stub: Stub) -> Iterator[list[EmbeddedBackend]]:
    both = [EmbeddedBackend(model="tiny", format="float32"), Endpoint(stub.url, tokenizer=stub.tokenizer)]
    yield both
    for each in both:
        each.shutdown()


def run(backend: EmbeddedBackend, *segments: Any, **options: Any) -> Any:
    @sgl.function
    def program(s: Any) -> None:
        for segment in segments:
            s += segment

    return program.run(backend=backend, **options)


@pytest.mark.parametrize(
    "segment",
    [
        sgl.gen("x", temperature=0, max_tokens=12),
        sgl.gen("x", temperature=0, max_tokens=12, stop=["e", "q"]),
        free("x", temperature=0, max_tokens=5),
        beam("x", schema=OBJECT, width=3),
        beam("x", choices=["New", "New York"]),
        beam("x", grammar='start: "x" | "yy"'),
        tool_call("x", [{"name": "f", "parameters": {}}]),
        *(
            sgl.select("x", choices=["yes", "no, never", "maybe"], choices_method=method)
            for method in (token_length_normalized, greedy_token_selection, unconditional_likelihood_normalized)
        ),
    ],
)
def test_a_segment_is_the_same_on_both_engines(backends: list[EmbeddedBackend], segment: Any) -> None:
    here, there = (run(backend, "Q: ", segment) for backend in backends)
    assert there.error() is None
    assert there["x"] == here["x"]


def test_roles_forks_and_streams_are_the_same_on_both_engines(backends: list[EmbeddedBackend]) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.system("S") + sgl.user("U")
        forks = s.fork(3)
        for i, fork in enumerate(forks):
            fork += sgl.assistant(str(i) + sgl.gen("part", temperature=0, max_tokens=4))
        s += sgl.assistant(" ".join(fork["part"] for fork in forks) + beam("value", schema=OBJECT, width=2))

    here, there = (program.run(backend=backend) for backend in backends)
    assert there.text() == here.text()
    assert result(there, "value").value == result(here, "value").value
    streamed = run(backends[1], "Hello", sgl.gen("x", temperature=0, max_tokens=24), stream=True)
    assert "".join(streamed.text_iter()) == run(backends[0], "Hello", sgl.gen("x", temperature=0, max_tokens=24)).text()


def test_several_samples_come_as_a_list(backends: list[EmbeddedBackend]) -> None:
    state = run(backends[1], "Q: ", sgl.gen("x", n=3, max_tokens=3))
    assert len(state["x"]) == len(state.get_meta_info("x")) == 3


def test_what_the_servers_grammar_was_not_told_is_in_the_meta_info(backends: list[EmbeddedBackend]) -> None:
    schema = json.dumps({"type": "array", "items": {"type": "integer"}, "uniqueItems": True})
    state = run(backends[1], "Q: ", sgl.gen("x", json_schema=schema, max_tokens=2, temperature=0))
    assert state.get_meta_info("x")["toolkit"]["partial"] == ["uniqueItems at the root"]


def test_a_server_says_who_it_is(backends: list[EmbeddedBackend]) -> None:
    assert backends[1].get_server_info()["version"] == "0.5.23"
    assert backends[1].get_model_name() == "stub"


def test_a_server_that_is_not_there_ends_the_program_with_its_error() -> None:
    state = run(Endpoint("http://127.0.0.1:9", tokenizer=Stub().tokenizer), "Q: ", sgl.gen("x"))
    state.sync()
    assert isinstance(state.error(), EngineError)


@pytest.mark.parametrize(("url", "options"), [("localhost:30000", {}), (7, {}), ("http://h", {"model": "tiny"})])
def test_what_is_no_server_is_refused_where_it_is_written(url: Any, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Endpoint(url, **options)
