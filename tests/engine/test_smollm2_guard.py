"""The guard on the real model: tokens of several bytes, its own JSON, faults that plain decoding undoes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from toolkit.bench.guard_cost import SCHEMA
from toolkit.contracts import Completion, Request, SamplingParams, Watch
from toolkit.engine.breaker import Breaker
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.loops.speculative import Line
from toolkit.gate.faults import DRILLED, FAULTS
from toolkit.results import only_result

pytestmark = pytest.mark.slow
PROMPT = (
    'Text: Maria is 31 years old, lives in Rome and likes chess, tea and old trains.\nJSON: {"name":"Maria","age":31,"city":"Rome",'
    '"likes":["chess","tea","old trains"]}\nText: Yuki, 25 years old, lives in Osaka and likes ramen and climbing.\nJSON:'
)
REQUEST = Request(prompt=PROMPT, sampling=SamplingParams(max_tokens=60, stop=("\n",)), watch=Watch(kind="json", schema=SCHEMA))


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine("smollm2", drafter="ngram", draft={"tokens": 4}, audit=1.0, breaker=Breaker(None)) as opened:
        yield opened


def text(engine: EmbeddedEngine, request: Request) -> Completion:
    result = only_result(engine.generate([request]))
    assert isinstance(result, Completion)
    return result


def test_an_honest_text_passes_its_audit(engine: EmbeddedEngine) -> None:
    plain = text(engine, replace(REQUEST, speculate=False))
    found = text(engine, REQUEST)
    assert found.token_ids == plain.token_ids and found.valid == plain.valid and found.usage.accepted > 0
    assert found.incidents == () and (found.audit is None or found.audit.verdict == "pass")
    sampled = replace(REQUEST, sampling=replace(REQUEST.sampling, temperature=0.7, seed=5))
    assert text(engine, sampled).token_ids == text(engine, replace(sampled, speculate=False)).token_ids


@pytest.mark.parametrize("fault", DRILLED)
def test_whatever_the_fault_the_text_is_that_of_plain_decoding(engine: EmbeddedEngine, fault: str) -> None:
    plain = text(engine, replace(REQUEST, speculate=False))
    FAULTS.load(fault)(engine)
    try:
        for number in range(3):
            found = text(engine, replace(REQUEST, id=f"{fault} {number}"))
            assert found.text == plain.text and found.token_ids == plain.token_ids and found.valid == plain.valid
    finally:
        engine._line = Line
