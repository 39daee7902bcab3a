"""Any OpenAI-compatible server under the gate: what it shows is judged, what it cannot show is never passed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.gate.openai_stub import served
from toolkit.contracts import Completion, Done, Request, SamplingParams
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.errors import EngineError, UnsupportedError, UsageError
from toolkit.gate.arm import Memory
from toolkit.gate.identity import identity
from toolkit.gate.open import open_named
from toolkit.gate.openai import OpenAiEngine, Spelled
from toolkit.gate.report import Report
from toolkit.gate.run import run_gate
from toolkit.gate.sglext import books, output_ids
from toolkit.results import only_result


@pytest.fixture(scope="module")
def plain() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine("tiny") as engine:
        yield engine


@pytest.fixture(scope="module")
def drafted() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine("tiny", drafter="ngram", draft={"tokens": 4}) as engine:
        yield engine


@pytest.fixture(scope="module")
def baseline(plain: EmbeddedEngine) -> Iterator[OpenAiEngine]:
    with served(plain) as url:
        engine = OpenAiEngine(url)
        yield engine
        engine.close()


@pytest.fixture(scope="module")
def memory() -> Memory:
    return {}


def gate(baseline: OpenAiEngine, url: str, memory: Memory, *, first: str = "") -> Report:
    engine = open_named(url, embedded={}, remote={})
    try:
        return run_gate(baseline, engine, memory=memory, first=first)  # type: ignore[arg-type]
    finally:
        engine.close()


CHAT = [{"role": "user", "content": "hello"}]


def test_a_text_comes_with_spelled_tokens_and_their_rivals(plain: EmbeddedEngine) -> None:
    with served(plain) as url:
        engine = OpenAiEngine(url)
        request = Request(prompt=CHAT, id="a", sampling=SamplingParams(max_tokens=6, ignore_eos=True))
        found = only_result(engine.generate([request]))
        expected = only_result(plain.generate([request]))
        engine.close()
    assert isinstance(found, Completion) and found.text == expected.text and len(found.token_ids) == 6
    assert engine.tokenizer.decode(found.token_ids) == expected.text
    assert [each.logprob for each in found.logprobs] != [] and len(found.logprobs[0].top) == 2
    assert engine.capabilities.model == "tiny" and engine.capabilities.context == 2048


def test_an_intact_server_passes_what_can_be_checked_and_the_rest_is_listed(
    baseline: OpenAiEngine, drafted: EmbeddedEngine, memory: Memory
) -> None:
    with served(drafted) as url:
        report = gate(baseline, url, memory)
    assert (report.verdict, report.reasons) == ("PASS", ())
    assert report.accounting["drafts"]["accepted"] > 0
    assert any("logit_bias" in why or "token ids" in why for why in report.not_checkable)
    results = {row["name"]: row["result"] for row in report.canaries}
    assert results["logit_bias"] == results["tools_forced"] == "not checkable" and results["json_flat"] == "pass"


def test_without_counters_speculation_is_not_proven(baseline: OpenAiEngine, drafted: EmbeddedEngine, memory: Memory) -> None:
    with served(drafted, has_metrics=False) as url:
        report = gate(baseline, url, memory)
    assert report.verdict == "INCONCLUSIVE" and all("not proven active" in why for why in report.reasons)


def test_a_sglang_server_tells_what_drafts_for_it_and_what_became_of_the_drafts(drafted: EmbeddedEngine) -> None:
    with served(drafted, has_metrics=False, sglang="ngram") as url:
        engine = OpenAiEngine(url)
        sampling = SamplingParams(max_tokens=96, ignore_eos=True, n=2)
        done = [
            each.result for each in engine.generate([Request(prompt=CHAT, id="a", sampling=sampling)]) if isinstance(each, Done)
        ]
        who = identity(engine)  # type: ignore[arg-type]
        engine.close()
    assert all(isinstance(each, Completion) and each.usage.proposed >= each.usage.accepted > 0 for each in done)
    assert all(isinstance(each, Completion) and each.usage.passes < 2 * each.usage.output_tokens == 192 for each in done)
    assert (who["drafter"], who["server"], who["root"], who["dtype"]) == ("ngram", "0.5.23", "tiny", "float32")
    assert who["speculation"] == {"speculative_algorithm": "NGRAM", "speculative_draft_model_path": "head"}


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"sglext": None},
        {"sglext": {"spec_tokens_details": [{}]}},
        {"sglext": {"spec_tokens_details": {"spec_verify_ct": -1}}},
    ],
)
def test_books_of_another_shape_are_no_books(event: dict[str, object]) -> None:
    assert books(event, 1) is None


def test_a_sglang_servers_tokens_are_those_of_its_own_field_and_its_streams_scores_are_not_asked_for(
    plain: EmbeddedEngine, drafted: EmbeddedEngine
) -> None:
    request = Request(prompt=CHAT, sampling=SamplingParams(max_tokens=12, ignore_eos=True))
    expected = only_result(plain.generate([request]))
    with served(plain, sglang="") as url, served(drafted, has_metrics=False, sglang="ngram") as other:
        engine = OpenAiEngine(url)
        found = only_result(engine.generate([request]))
        with pytest.raises(UnsupportedError, match="leaves some out"):
            only_result(engine.generate([replace(request, sampling=replace(request.sampling, logprobs=0))]))
        report = gate(engine, other, {})
        engine.close()
    assert isinstance(found, Completion) and isinstance(expected, Completion)
    assert found.token_ids == expected.token_ids and found.text == expected.text and found.logprobs == ()
    assert (report.verdict, report.reasons) == ("PASS", ())
    assert any("leaves some out" in why for why in report.not_checkable)


@pytest.mark.parametrize("told", [None, "x", [], [[1], [2]], [[1, -1]], [[True]], [["1"]], [None]])
def test_token_ids_of_another_shape_are_none(told: object) -> None:
    assert output_ids({"sglext": {"output_ids": told}}, 1) is None
    assert output_ids({"sglext": {"output_ids": [[1, 2]]}}, 1) == [[1, 2]]


def test_a_server_that_garbles_is_held(baseline: OpenAiEngine, plain: EmbeddedEngine, memory: Memory) -> None:
    def garble(result: Completion) -> Completion:
        return replace(result, text=result.text.replace("a", "b"), logprobs=result.logprobs[:-1])

    with served(plain, spoil=garble) as url:
        assert gate(baseline, url, memory, first="canaries").verdict == "HOLD"


def test_what_such_a_server_has_not_is_refused_by_name(plain: EmbeddedEngine) -> None:
    with served(plain) as url:
        engine = OpenAiEngine(url)
        for request in (
            Request(prompt="raw", id="1"),
            Request(prompt=CHAT, id="2", sampling=SamplingParams(logit_bias={1: 1.0})),
            Request(prompt=CHAT, id="3", trace=True),
            Request(prompt=CHAT, id="4", speculate=False),
        ):
            with pytest.raises(UnsupportedError, match="chat completions"):
                only_result(engine.generate([request]))
        with pytest.raises(UnsupportedError, match="score"):
            engine.score(CHAT, [[1]])
        engine.close()
    with pytest.raises(UsageError, match="tokenizer is no option"):
        OpenAiEngine("http://127.0.0.1:9/v1", tokenizer="x")
    with pytest.raises(EngineError, match="cannot be reached"):
        OpenAiEngine("http://127.0.0.1:9/v1")
    with pytest.raises(UnsupportedError, match="token ids"):
        Spelled().encode("x")


@pytest.mark.parametrize("text", ["psychic", "embedded@tokens", "embedded:ngram@tokens=2,tokens=3", "embedded:ngram@a=1,a.b=2"])
def test_a_name_that_is_none_is_a_wrong_call(text: str) -> None:
    with pytest.raises(UsageError):
        open_named(text, embedded={"model": "tiny"}, remote={})


def test_engine_options_and_those_of_the_draft_are_told_apart() -> None:
    engine = open_named("embedded:ngram@format=float32,tokens=3,min_match=1", embedded={"model": "tiny"}, remote={})
    assert isinstance(engine, EmbeddedEngine) and engine.format == "float32"
    assert engine.draft == {"tokens": 3, "nodes": None, "min_match": 1}
    engine.close()
