"""Drawn drafts through the whole engine against the exact distribution of texts, by chi-square at a false-alarm rate of 1e-6.

The draft model is the tiny model's first layer, which is wrong often and right often at the chosen prompts; the reference
recomputes every text that there can be. Each planted fault must be rejected by the very same test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

import pytest
import torch

from tests.engine.twins import logits_after
from tests.sample.accept_twin import faulty, plain
from tests.sample.test_accept_statistics import FALSE_ALARM, p_value
from toolkit.contracts import Completion, Done, Grammar, Request, SamplingParams, Usage
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.grammar.compile import compile_grammar
from toolkit.grammar.mask import allocate, unpack
from toolkit.model.tiny import tiny_model
from toolkit.text.tokenizer import ByteTokenizer

pytestmark = pytest.mark.slow  # thousands of texts

LENGTH = 4  # tokens of a text: the prompt's pass gives the first, verification passes the others
LINES = 250  # samples of a request
SHAPES: Mapping[str, Mapping[str, int | float | bool]] = {
    "chain": {"tokens": 3, "width": 1, "floor": 0.0, "draw": True},
    "tree": {"tokens": 3, "nodes": 7, "width": 3, "floor": 0.0, "draw": True},
}
Text = tuple[int, ...]


class Case(NamedTuple):
    """A prompt at which the draft model's distribution covers a good part of the target's and is another one."""

    prompt: str
    sampling: SamplingParams
    grammar: Grammar | None = None


CASES = {
    "top-k": Case("bbb", SamplingParams(temperature=1.5, top_k=3)),
    "penalties": Case("bbb", SamplingParams(temperature=1.5, top_k=4, top_p=0.9, presence_penalty=0.6, repetition_penalty=1.1)),
    "grammar": Case("{{{", SamplingParams(temperature=1.5, top_k=3), Grammar("regex", "[ -~]{4}")),
}


@pytest.fixture(scope="module", params=SHAPES)
def engine(request: pytest.FixtureRequest) -> Iterator[EmbeddedEngine]:
    draft = SHAPES[request.param]
    with EmbeddedEngine("tiny", format="float32", kv_blocks=4096, block_size=4, drafter="model", draft=draft) as opened:
        yield opened


@cache
def every_text(name: str) -> Mapping[Text, float]:
    """The probability of every text that plain decoding can write, each prefix recomputed from nothing."""
    case, decoder, tokenizer = CASES[name], tiny_model(), ByteTokenizer()
    prompt, params = tokenizer.encode(case.prompt), case.sampling
    ends = [*tokenizer.eos_ids]
    grammar = compile_grammar(case.grammar, tokenizer) if case.grammar is not None else None
    found: dict[Text, float] = {(): 1.0}
    for _ in range(LENGTH):
        longer: dict[Text, float] = {}
        for text, mass in found.items():
            row = logits_after(decoder, [*prompt, *text])[-1].double()
            if params.repetition_penalty != 1.0:
                for token in {*prompt, *text}:
                    row[token] = (
                        row[token] / params.repetition_penalty if row[token] > 0 else row[token] * params.repetition_penalty
                    )
            for token in set(text):
                row[token] -= params.presence_penalty
            if grammar is not None:
                matcher, mask = grammar.matcher(), allocate(1, len(row))
                matcher.advance(text)
                matcher.fill(mask, 0)
                row[~torch.from_numpy(unpack(mask, len(row))[0])] = -torch.inf
                row[ends] = -torch.inf
            for token, p in enumerate(plain(row.tolist(), params)):
                if p > 0.0:
                    longer[*text, token] = mass * p
        found = longer
    return found


def sample(engine: EmbeddedEngine, case: Case, requests: int) -> tuple[list[Text], Usage]:
    """The texts of that many requests, and what they have cost."""
    texts: list[Text] = []
    total: Counter[str] = Counter()
    for seed in range(requests):
        params = {name: getattr(case.sampling, name) for name in SamplingParams.__dataclass_fields__}
        sampling = SamplingParams(**params | {"max_tokens": LENGTH, "ignore_eos": True, "n": LINES, "seed": seed})
        for event in engine.generate([Request(prompt=case.prompt, sampling=sampling, grammar=case.grammar)]):
            if isinstance(event, Done):
                assert isinstance(event.result, Completion) and event.result.notes == ()
                texts.append(event.result.token_ids)
                usage = event.result.usage
        total.update(proposed=usage.proposed, accepted=usage.accepted)
    return texts, Usage(proposed=total["proposed"], accepted=total["accepted"])


def worst(texts: list[Text], exact: Mapping[Text, float]) -> float:
    """The least p-value over whole texts and their beginnings."""
    found = []
    for length in range(1, LENGTH + 1):
        mass: dict[Text, float] = {}
        for text, p in exact.items():
            mass[text[:length]] = mass.get(text[:length], 0.0) + p
        cells = {text: i for i, text in enumerate(mass)}
        counts = Counter(cells.get(text[:length], len(cells)) for text in texts)
        found.append(p_value(counts, [*mass.values(), 0.0], len(texts)))
    return min(found)


@pytest.mark.parametrize("name", CASES)
def test_texts_come_as_often_as_they_should(engine: EmbeddedEngine, name: str) -> None:
    texts, usage = sample(engine, CASES[name], 3)
    assert usage.accepted > len(texts) // 4 and usage.proposed - usage.accepted > len(texts) // 4  # else it would show nothing
    assert worst(texts, every_text(name)) > FALSE_ALARM


@pytest.mark.parametrize("fault", ["p for the residual", "q ignored"])
def test_a_wrong_rule_of_acceptance_is_rejected(engine: EmbeddedEngine, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.engine.loops.plain.choose", faulty(fault))
    texts, _ = sample(engine, CASES["top-k"], 2)
    assert worst(texts, every_text("top-k")) < FALSE_ALARM


def test_the_reference_is_a_distribution() -> None:
    for name in CASES:
        exact = every_text(name)
        assert 15 < len(exact) < 400
        assert sum(exact.values()) == pytest.approx(1.0)
