"""The front end over the embedded engine itself: what the scripted engine assumes, a model has to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import sglang as sgl
from sglang.lang.global_config import global_config

from toolkit.errors import ContextError, SchemaError
from toolkit.lang import EmbeddedBackend, beam, free, result, tool_call

OBJECT = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tiny() -> Iterator[EmbeddedBackend]:
    backend = EmbeddedBackend(model="tiny")
    before = global_config.default_backend
    sgl.set_default_backend(backend)
    yield backend
    sgl.set_default_backend(before)
    backend.shutdown()


def run(*segments: Any, **options: Any) -> Any:
    @sgl.function
    def program(s: Any) -> None:
        for segment in segments:
            s += segment

    return program.run(**options)


def test_a_segment_is_what_the_engine_generates(tiny: EmbeddedBackend) -> None:
    plain = tiny.engine.complete("Hello", temperature=0.0, max_tokens=12)  # type: ignore[attr-defined]
    state = run("Hello", sgl.gen("x", temperature=0, max_tokens=12))
    assert state["x"] == plain.text and state.get_meta_info("x")["completion_tokens"] == len(plain.token_ids)


def test_a_stream_adds_up_to_the_same_text(tiny: EmbeddedBackend) -> None:
    segment = sgl.gen("x", temperature=0, max_tokens=24)
    streamed = run("Hello", segment, stream=True)
    assert "".join(streamed.text_iter()) == run("Hello", segment).text() == streamed.text()


def test_one_program_with_and_without_a_drafter_and_with_a_beam_says_what_it_says_plainly() -> None:
    segments = ("abab", free("x", temperature=0, max_tokens=12), free("y", temperature=0, max_tokens=12, speculate=False),
                beam("z", schema=OBJECT, width=3), free("w", temperature=0, max_tokens=12))  # fmt: skip
    backend = EmbeddedBackend(model="tiny", drafter="model", draft={"tokens": 3, "floor": 0.0})
    plain = EmbeddedBackend(model="tiny")
    try:
        found, expected = run(*segments, backend=backend), run(*segments, backend=plain)
        assert found.text() == expected.text()
        usages = {name: found.get_meta_info(name)["toolkit"]["usage"] for name in "xyw"}
        assert usages["x"]["proposed"] > 0 == usages["y"]["proposed"] and usages["w"]["proposed"] > 0
        assert found.get_meta_info("x")["toolkit"]["notes"] == []
    finally:
        backend.shutdown()
        plain.shutdown()


def test_a_beam_segment_is_the_engines_beam_search(tiny: EmbeddedBackend) -> None:
    direct = tiny.engine.beam("Q: ", schema=OBJECT, width=3)  # type: ignore[attr-defined]
    found = result(run("Q: ", beam("x", schema=OBJECT, width=3)), "x")
    assert found.value == direct.value and found.score == pytest.approx(direct.score)
    assert len(found.alternatives) == len(direct.alternatives) > 1
    streamed = run("Q: ", beam("x", schema=OBJECT, width=3), stream=True)
    assert json.loads("".join(streamed.text_iter())[3:]) == direct.value


def test_every_kind_of_constraint_holds(tiny: EmbeddedBackend) -> None:
    state = run(
        "a", sgl.gen("regex", regex="(red|blue)!"), sgl.gen_int("int", max_tokens=4), sgl.gen("bool", dtype=bool),
        sgl.gen("json", json_schema=json.dumps(OBJECT)), beam("choice", choices=["New", "New York"]),
        beam("lark", grammar='start: "x" | "yy"'), tool_call("call", [{"name": "f", "parameters": {}}]),
    )  # fmt: skip
    assert state.error() is None
    assert state["regex"] in ("red!", "blue!") and int(state["int"]) is not None and state["bool"] in ("True", "False")
    assert json.loads(state["json"]).keys() == {"n", "ok"} and state["choice"] in ("New", "New York")
    assert state["lark"] in ("x", "yy") and result(state, "call").value == {"name": "f", "arguments": {}}


def test_roles_give_the_ids_of_the_models_template(tiny: EmbeddedBackend) -> None:
    state = run(sgl.system("S") + sgl.user("U") + sgl.assistant(sgl.gen("x", max_tokens=1, ignore_eos=True)))
    text = state.text()
    seen = tiny.engine.tokenizer.encode(text[: text.index("<|assistant|>") + 13], control=True)
    assert seen == tiny.engine.tokenizer.chat([{"role": "system", "content": "S"}, {"role": "user", "content": "U"}])


@pytest.mark.parametrize(
    "method", [sgl.token_length_normalized, sgl.greedy_token_selection, sgl.unconditional_likelihood_normalized]
)
def test_select_agrees_with_the_engines_own_scores(tiny: EmbeddedBackend, method: Any) -> None:
    choices = ["yes", "no", "never"]
    state = run("Q: ", sgl.select("x", choices, choices_method=method))
    scores = tiny.engine.score("Q: ", [list(choice.encode()) for choice in choices])
    means = [sum(each) / len(each) for each in scores]
    assert state["x"] in choices and state.get_meta_info("x")["normalized_prompt_logprobs"] == pytest.approx(means, abs=1e-4)


def test_forks_share_their_prefix_and_go_their_own_ways(tiny: EmbeddedBackend) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "A long common beginning of every fork. " * 4
        forks = s.fork(4)
        forks += lambda i: f"{i}:" + free("x", temperature=0, max_tokens=6)
        forks.join()

    together = program.run()["x"]
    alone = [
        run("A long common beginning of every fork. " * 4 + f"{i}:", free("x", temperature=0, max_tokens=6))["x"]
        for i in range(4)
    ]
    assert together == alone


def test_a_batch_equals_its_programs_one_by_one(tiny: EmbeddedBackend) -> None:
    @sgl.function
    def program(s: Any, text: str) -> None:
        s += text + beam("x", schema=OBJECT, width=2)

    texts = ["one", "two", "three", "four"]
    batch = program.run_batch([{"text": text} for text in texts])
    assert [state["x"] for state in batch] == [program.run(text=text)["x"] for text in texts]


def test_errors_of_the_engine_surface(tiny: EmbeddedBackend) -> None:
    assert isinstance(run("x" * 5000, sgl.gen("x")).error(), ContextError)
    assert isinstance(run("x", sgl.gen("x", regex="(?=a)b")).error(), SchemaError)


def test_logprobs_and_samples_come_from_the_model(tiny: EmbeddedBackend) -> None:
    segment = sgl.gen("x", max_tokens=3, n=2, return_logprob=True, top_logprobs_num=2, ignore_eos=True)
    metas = run("Hello", segment).get_meta_info("x")
    assert len(metas) == 2 and all(len(meta["output_top_logprobs"][0]) == 2 for meta in metas)
    meta = run("Hello", sgl.gen("x", max_tokens=2, return_logprob=True, logprob_start_len=2)).get_meta_info("x")
    scored = tiny.engine.score("Hel", [list(b"lo")])[0]
    assert [entry[0] for entry in meta["input_token_logprobs"]] == [None, *map(pytest.approx, scored)]


@pytest.mark.slow
def test_the_real_models_template_brings_its_default_system_text() -> None:
    backend = EmbeddedBackend(model="smollm2")
    try:
        talk = [{"role": "user", "content": "Hello"}]
        state = sgl.function(
            lambda s: s.stream_executor.submit(sgl.user("Hello") + sgl.assistant(sgl.gen("x", max_tokens=1)))
        ).run(backend=backend)
        ids = backend.engine.tokenizer.encode(state.text().split("assistant\n")[0] + "assistant\n", control=True)
        assert ids == backend.engine.tokenizer.chat(talk) and backend.get_chat_template().default_system_prompt
    finally:
        backend.shutdown()
