"""4-bit keys and values inside the engine: other outputs than float's, but the laws of an engine hold among themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from toolkit.contracts import Done, Request, SamplingParams
from toolkit.engine.audit import CODED_TIES, FLOAT_TIES, HALF_TIES
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.errors import UnsupportedError, UsageError

TEXT = "ab ab ab ab, and then ab ab ab"
DRAFT = {"tokens": 3, "nodes": 6, "width": 2, "floor": 0.0}


@pytest.fixture(scope="module")
def q4() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine("tiny", drafter="model", draft=DRAFT, kv_dtype="q4", kv_blocks=512, block_size=4) as engine:
        yield engine


def texts(engine: EmbeddedEngine, **options: object) -> list[tuple[int, ...]]:
    sampling = SamplingParams(max_tokens=40, ignore_eos=True, n=3, temperature=0.9, seed=3)
    events = engine.generate([Request(prompt=TEXT, sampling=sampling, **options)])  # type: ignore[arg-type]
    return [event.result.token_ids for event in sorted((e for e in events if isinstance(e, Done)), key=lambda e: e.index)]  # type: ignore[union-attr]


def test_speculation_changes_nothing_over_quantised_keys_either(q4: EmbeddedEngine) -> None:
    plain = q4.complete(TEXT, max_tokens=60, ignore_eos=True)
    (done,) = [
        event
        for event in q4.generate([Request(prompt=TEXT, sampling=SamplingParams(max_tokens=60, ignore_eos=True), speculate=False)])
        if isinstance(event, Done)
    ]  # fmt: skip
    assert plain.token_ids == done.result.token_ids and plain.usage.accepted > 0  # type: ignore[union-attr]
    assert texts(q4) == texts(q4, speculate=False)


def test_a_prompt_that_was_computed_before_gives_the_same_text(q4: EmbeddedEngine) -> None:
    first, second = (q4.complete("Another prompt, not seen before.", max_tokens=30) for _ in range(2))
    assert second.usage.cached_tokens > first.usage.cached_tokens and second.token_ids == first.token_ids


def test_quantised_keys_are_another_model_s_numbers_but_nearly_its_likelihoods(q4: EmbeddedEngine) -> None:
    ids = q4.tokenizer.encode(" ab ab")
    with EmbeddedEngine("tiny", format="float32", kv_blocks=64) as engine:
        (exact,), (rounded,) = engine.score(TEXT, [ids]), q4.score(TEXT, [ids])
    assert exact != rounded and max(abs(a - b) for a, b in zip(exact, rounded, strict=True)) < 1.0


def test_the_engine_says_what_it_keeps_and_in_what_it_computes(q4: EmbeddedEngine) -> None:
    assert q4.kv_dtype == "q4" and q4.format == "float32"
    with EmbeddedEngine("tiny", format="float32", kv_blocks=8) as engine:
        assert engine.kv_dtype == "float32"


def test_what_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="int8"):
        EmbeddedEngine("tiny", format="int8", kv_dtype="q4")
    with pytest.raises(UsageError, match="kv_dtype = 'q3'"):
        EmbeddedEngine("tiny", kv_dtype="q3")


def test_an_audit_does_not_take_what_codes_do_to_last_bits_for_faults() -> None:
    with (
        EmbeddedEngine("tiny", kv_dtype="q4", kv_blocks=8, audit=1.0, drafter="ngram") as coded,
        EmbeddedEngine("tiny", format="float32", kv_blocks=8, audit=1.0, drafter="ngram") as exact,
        EmbeddedEngine("tiny", format="int8", kv_blocks=8, audit=1.0, drafter="ngram") as whole,
        EmbeddedEngine("tiny", dtype="bfloat16", kv_blocks=8, audit=1.0, drafter="ngram") as half,
    ):
        found = [engine._oversight.ties for engine in (coded, exact, whole, half)]
    assert found == [CODED_TIES, FLOAT_TIES, 0.0, HALF_TIES]
