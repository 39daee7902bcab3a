"""Partings: the place, and the nats between the two tokens, against the filters that decoding itself uses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from toolkit.contracts import Completion, Request, SamplingParams, TokenLogprob
from toolkit.engine.audit import CODED_TIES, FLOAT_TIES, HALF_TIES, INT8_TIES
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.errors import UnsupportedError
from toolkit.gate.arm import Answer
from toolkit.gate.greedy import Setting, _row
from toolkit.gate.openai import Spelled
from toolkit.gate.parting import SERVER_TIES, parting, tolerance
from toolkit.gate.report import Findings
from toolkit.sample.filters import adjust


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine("tiny", format="float32") as opened:
        yield opened


def other(result: Completion, at: int, token: int) -> Completion:
    return replace(result, token_ids=(*result.token_ids[:at], token, *result.token_ids[at + 1 :]))


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"logit_bias": {65: 4.0, 66: -2.0}},
        {"frequency_penalty": 0.7, "presence_penalty": 0.4, "logit_bias": {98: 25.0, 97: 25.0}},
    ],
)
def test_the_nats_are_those_of_the_logits_that_decoding_chose_from(engine: EmbeddedEngine, changed: dict[str, object]) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True, **changed)  # type: ignore[arg-type]
    prompt = engine.tokenizer.encode("abcabc")
    request = Request(prompt=prompt, sampling=params)
    expected = engine.complete(prompt, max_tokens=12, ignore_eos=True, **changed)
    at = 7
    before = expected.token_ids[:at]
    scores = torch.tensor(
        [line[0] for line in engine.score([*prompt, *before], [[t] for t in range(engine.tokenizer.vocab_size)])]
    )
    logits = adjust(scores, params, prompt, before)
    for token in (65, 66, 97, 98, 7):
        if token != expected.token_ids[at]:
            found = parting(engine, request, expected, other(expected, at, token))
            assert found is not None and (found.at, found.expected, found.found) == (at, expected.token_ids[at], token)
            assert found.nats == pytest.approx(float(logits.max() - logits[token]), abs=1e-4)


def test_equal_texts_do_not_part_and_an_end_is_never_a_tie(engine: EmbeddedEngine) -> None:
    request = Request(prompt="x", sampling=SamplingParams(max_tokens=4, ignore_eos=True))
    text = engine.complete("x", max_tokens=4, ignore_eos=True)
    assert parting(engine, request, text, text) is None
    longer = replace(text, token_ids=(*text.token_ids, 65))
    found = parting(engine, request, text, longer)
    assert found is not None and (found.at, found.expected, found.found, found.nats) == (4, None, 65, math.inf)


def test_an_engine_that_cannot_score_is_taken_by_the_rivals_that_it_reported() -> None:
    class Silent:
        tokenizer = Spelled()

        def score(self, *_: object) -> list[list[float]]:
            raise UnsupportedError("no scores")

    row = TokenLogprob(5, -0.5, ((5, -0.5), (6, -0.75)))
    text = Completion(text="", token_ids=(5,), finish_reason="length", logprobs=(row,))
    request = Request(prompt=[1])
    for token, nats in ((6, 0.25), (7, math.inf)):
        found = parting(Silent(), request, text, other(text, 0, token))  # type: ignore[arg-type]
        assert found is not None and found.nats == pytest.approx(nats)


def test_the_tolerance_is_that_of_the_coarser_numbers(engine: EmbeddedEngine) -> None:
    class Numbers:
        def __init__(self, form: str | None = None, dtype: str = "") -> None:
            self.facts = type("Facts", (), {"dtype": dtype})
            if form is not None:
                self.format = form

    names = (
        Numbers("int8 (x)"),
        Numbers("float32"),
        Numbers("bfloat16"),
        Numbers(dtype="float32"),
        Numbers(dtype="bfloat16"),
        Numbers(),
    )
    assert [tolerance(names[0], each) for each in names] == [  # type: ignore[arg-type]
        INT8_TIES, FLOAT_TIES, HALF_TIES, SERVER_TIES, HALF_TIES, HALF_TIES,
    ]  # fmt: skip
    assert tolerance(engine, engine) == FLOAT_TIES
    coded = Numbers("float32")
    coded.kv_dtype = "q4"  # type: ignore[attr-defined]
    assert tolerance(coded, coded) == CODED_TIES  # type: ignore[arg-type]
    assert tolerance(names[1], coded) == FLOAT_TIES, "4 bits that are under test are no tie"  # type: ignore[arg-type]


class Said:
    """An arm that gives the same answers to all."""

    def __init__(self, *answers: Answer) -> None:
        self.answers, self.asked = list(answers), 0
        self.engine = None

    def ask(self, what: str, requests: object, *, together: int) -> list[Answer]:
        self.asked += 1
        return self.answers


def test_where_all_is_refused_nothing_is_compared_and_the_baseline_need_not_repeat_itself() -> None:
    request = Request(prompt="a")
    refuses = Said(Answer(request, error=UnsupportedError("a penalty is not supported")))
    baseline = Said()
    findings = Findings()
    row = _row(Setting("penalties", SamplingParams(), 1), [request], baseline, refuses, 0.0, findings)  # type: ignore[arg-type]
    assert (baseline.asked, row["texts"], findings.blocks, findings.holds) == (0, 0, [], [])
    assert findings.not_checkable == ["greedy, penalties: a penalty is not supported"]
