"""Beam search against exhaustive enumeration and against its own slow twins, on the tiny model."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest

from tests.engine.twins import every_text, search
from toolkit.contracts import BeamParams, Grammar, Mask
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.errors import NoValidError, SchemaError
from toolkit.grammar.matcher import LLMatcher
from toolkit.sample.beam import score as normalise

RECORD = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["alpha", "alphabet", "beta"]},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "tag": {"type": "string", "maxLength": 3},
    },
    "required": ["kind", "n"],
    "additionalProperties": False,
}
SCHEMA = Grammar("json_schema", json.dumps(RECORD))
LETTERS = Grammar("regex", "[abc]{1,4}")
PROMPTS = ("Say: ", "x", "a longer prompt with some words in it")


def exact(engine: EmbeddedEngine, prompt: str, texts: list[str], params: BeamParams) -> list[tuple[float, str]]:
    """Every text of the language with its score, best first: text and end token, scored without any search."""
    end = engine.tokenizer.eos_ids[0]
    lines = [[*engine.tokenizer.encode(text), end] for text in texts]
    sums = [(math.fsum(logprobs), len(logprobs)) for logprobs in engine.score(prompt, lines)]
    return sorted(((normalise(total, n, params), text) for (total, n), text in zip(sums, texts, strict=True)), reverse=True)


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("penalty", ["length", "gnmt"])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 2.0])
def test_a_wide_beam_finds_exactly_what_enumeration_finds(
    tiny: EmbeddedEngine, prompt: str, penalty: str, alpha: float
) -> None:
    params = BeamParams(width=128, alpha=alpha, penalty=penalty, n=10, max_tokens=6)  # type: ignore[arg-type]
    truth = exact(tiny, prompt, list(every_text("abc", 4)), params)
    found = search(tiny, prompt, LETTERS, params, cut=False)
    assert [h.text for h in found.alternatives] == [text for _, text in truth[:10]]
    assert [h.score for h in found.alternatives] == pytest.approx([value for value, _ in truth[:10]], abs=1e-4)
    early = search(tiny, prompt, LETTERS, params)
    assert early.text == truth[0][1] and early.score == pytest.approx(truth[0][0], abs=1e-4)


@pytest.mark.parametrize("grammar", [LETTERS, SCHEMA], ids=["letters", "record"])
@pytest.mark.parametrize("width", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
def test_stopping_early_never_gives_a_worse_answer_than_running_to_the_end(
    tiny: EmbeddedEngine, grammar: Grammar, width: int, alpha: float
) -> None:
    for prompt in PROMPTS:
        params = BeamParams(width=width, alpha=alpha, max_tokens=48)
        early, late = search(tiny, prompt, grammar, params), search(tiny, prompt, grammar, params, cut=False)
        assert early.score == pytest.approx(late.score, abs=1e-6) and early.text == late.text


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("n", [1, 2, 6])
def test_stopping_early_is_as_good_with_diverse_groups_and_few_wanted(tiny: EmbeddedEngine, alpha: float, n: int) -> None:
    for prompt in PROMPTS:
        for price in (0.5, 3.0):
            params = BeamParams(width=6, n=n, groups=3, diversity=price, alpha=alpha, max_tokens=48)
            early, late = search(tiny, prompt, SCHEMA, params), search(tiny, prompt, SCHEMA, params, cut=False)
            assert early.score == pytest.approx(late.score, abs=1e-6) and early.text == late.text


@pytest.mark.parametrize("width", [1, 2, 4, 7])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_looking_forced_tokens_ahead_changes_nothing_but_the_passes(tiny: EmbeddedEngine, width: int, alpha: float) -> None:
    for prompt in PROMPTS:
        params = BeamParams(width=width, alpha=alpha, max_tokens=48)
        fast, slow = search(tiny, prompt, SCHEMA, params), search(tiny, prompt, SCHEMA, params, lookahead=False)
        assert [h.token_ids for h in fast.alternatives] == [h.token_ids for h in slow.alternatives]
        for one, other in zip(fast.alternatives, slow.alternatives, strict=True):
            assert one.token_logprobs == pytest.approx(other.token_logprobs, abs=1e-4)
            assert {p: c.product for p, c in one.confidence.items()} == pytest.approx(
                {p: c.product for p, c in other.confidence.items()}, abs=1e-4
            )
        assert fast.usage.passes < slow.usage.passes


@pytest.mark.parametrize("grammar", [LETTERS, SCHEMA], ids=["letters", "record"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_width_one_is_constrained_greedy(tiny: EmbeddedEngine, grammar: Grammar, prompt: str) -> None:
    greedy = tiny.complete(prompt, grammar=grammar, max_tokens=48)
    best = tiny.beam(prompt, grammar=grammar, width=1, max_tokens=48)
    assert best.text == greedy.text
    assert best.alternatives[0].token_ids[: len(greedy.token_ids)] == greedy.token_ids
    assert best.usage.passes - greedy.usage.passes in (0, 1)  # the beam also scores the end token


def test_scores_are_the_models_own_and_count_the_end_token(tiny: EmbeddedEngine) -> None:
    result = tiny.beam("Say: ", grammar=SCHEMA, width=4, alpha=1.0, max_tokens=48)
    for one in result.alternatives:
        assert one.token_ids[-1] in tiny.tokenizer.eos_ids
        (rescored,) = tiny.score("Say: ", [one.token_ids])
        assert one.token_logprobs == pytest.approx(rescored, abs=1e-4)
        assert one.sum_logprob == pytest.approx(math.fsum(rescored), abs=1e-3)
        assert one.score == pytest.approx(one.sum_logprob / len(one.token_ids))
        assert one.text == tiny.tokenizer.decode(one.token_ids)


def test_alternatives_are_distinct_values_best_first_and_all_validated(tiny: EmbeddedEngine) -> None:
    result = tiny.beam("Say: ", grammar=SCHEMA, width=8, max_tokens=48)
    values = [json.dumps(one.value, sort_keys=True) for one in result.alternatives]
    assert len(set(values)) == len(values) == 8
    assert [one.score for one in result.alternatives] == sorted((one.score for one in result.alternatives), reverse=True)
    assert result.value == result.alternatives[0].value and all(one.valid for one in result.alternatives)


def test_the_best_valid_hypothesis_wins_over_a_better_scoring_invalid_one(tiny: EmbeddedEngine) -> None:
    """`not` is beyond the mask engine: the validator alone refuses the likeliest value."""
    free = {"enum": ["aa", "bb", "cc", "dd"]}
    first = tiny.beam("Say: ", schema=free, width=4, alpha=0.0).value
    result = tiny.beam(
        "Say: ",
        schema={"type": "string", "maxLength": 2, "minLength": 2, "enum": free["enum"], "not": {"const": first}},
        width=4,
        alpha=0.0,
    )
    assert result.partial and result.value != first and result.valid
    refused = [one for one in result.alternatives if not one.valid]
    assert [one.value for one in refused] == [first] and refused[0].score > result.score
    assert refused[0].violations[0].keyword == "not"


def test_all_invalid_is_an_error_with_every_reason(tiny: EmbeddedEngine) -> None:
    with pytest.raises(NoValidError) as caught:
        tiny.beam("Say: ", schema={"enum": ["aa", "bb"], "not": {"type": "string"}}, width=2, alpha=0.0)
    assert len(caught.value.reasons) == len(caught.value.texts) == 2
    with pytest.raises(NoValidError, match="truncated at max_tokens = 5"):
        tiny.beam("Say: ", grammar=SCHEMA, width=2, max_tokens=5)


def test_a_hypothesis_on_which_the_grammar_engine_gives_up_ends_alone(
    tiny: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    likeliest = tiny.complete("Say: ", grammar=LETTERS, max_tokens=1).text
    calls = []

    def refuse(self: LLMatcher, mask: Mask, row: int, fill: Callable[..., None] = LLMatcher.fill) -> None:
        if self._consumed == 1 and not calls:  # the best beam comes first
            calls.append(row)
            raise SchemaError("the grammar engine met its limit")
        fill(self, mask, row)

    monkeypatch.setattr(LLMatcher, "fill", refuse)
    rest = tiny.beam("Say: ", grammar=LETTERS, width=6, alpha=0.0)
    assert calls and rest.valid and all(not one.text.startswith(likeliest) for one in rest.alternatives)
    calls.clear()
    with pytest.raises(NoValidError, match="met its limit"):
        tiny.beam("Say: ", grammar=LETTERS, width=1)


def test_groups_make_the_n_best_more_diverse_and_leave_scores_honest(tiny: EmbeddedEngine) -> None:
    spread = tiny.beam("Say: ", regex="[a-h][0-9]", width=8, groups=8, diversity=1000.0, alpha=0.0, max_tokens=4)
    assert len({one.text[0] for one in spread.alternatives}) == 8  # a token that was taken is never worth its price
    one = tiny.beam("Say: ", grammar=SCHEMA, width=6, max_tokens=48)
    many = tiny.beam("Say: ", grammar=SCHEMA, width=6, groups=3, diversity=20.0, max_tokens=48)
    assert many.diversity > one.diversity > 0
    for hypothesis in many.alternatives:
        (rescored,) = tiny.score("Say: ", [hypothesis.token_ids])
        assert hypothesis.sum_logprob == pytest.approx(math.fsum(rescored), abs=1e-3)


def test_an_unconstrained_beam_is_allowed_and_points_to_free_text(tiny: EmbeddedEngine) -> None:
    result = tiny.beam("Say: ", width=3, max_tokens=8)
    assert result.valid and "free" in result.notes[0] and len(result.alternatives) == 3
    assert 0 < result.diversity < 1  # near-duplicates, and the figure says so


def test_confidence_is_renormalised_over_what_the_grammar_allowed(tiny: EmbeddedEngine) -> None:
    result = tiny.beam("Say: ", choices=["aa", "ab", "b"], width=3, alpha=0.0)
    products = [one.confidence[""].product for one in result.alternatives]
    assert sum(products) == pytest.approx(1.0, abs=1e-5)  # the three choices are all there is
    for numbers in ([1, 12, 123], [-1, -1.5, 0]):
        found = tiny.beam("Say: ", schema={"enum": numbers}, width=3, alpha=0.0).alternatives
        assert sum(one.confidence[""].product for one in found) == pytest.approx(1.0, abs=1e-5)  # ending a number is a choice
        wrapped = {"type": "object", "properties": {"n": {"enum": numbers}}, "required": ["n"], "additionalProperties": False}
        found = tiny.beam("Say: ", schema=wrapped, width=3, alpha=0.0).alternatives
        assert sum(one.confidence["/n"].product for one in found) == pytest.approx(1.0, abs=1e-5)
    only = tiny.beam("Say: ", schema={"const": "fixed"}, width=2).confidence[""]
    assert only.product == pytest.approx(1.0) and only.margin is None
    record = tiny.beam("Say: ", grammar=SCHEMA, width=6, max_tokens=48)
    assert set(record.confidence) == {f"/{key}" for key in record.value}
    for one in record.alternatives:
        for path, confidence in one.confidence.items():
            others = [h.score for h in record.alternatives if h.value.get(path[1:]) != one.value[path[1:]]]
            assert confidence.margin == (pytest.approx(one.score - max(others)) if others else None)
            assert 0 < confidence.product <= confidence.minimum <= 1
    assert record.confidence == record.alternatives[0].confidence


def test_values_are_distinct_as_json_has_it(tiny: EmbeddedEngine) -> None:
    """1 and 1.0 are one value in two spellings: the better-scoring spelling stands for it."""
    result = tiny.beam("Say: ", schema={"enum": [1, 2, True]}, width=6, alpha=0.0)
    assert sorted(map(str, (one.value for one in result.alternatives))) == ["1", "2", "True"]
    loose = tiny.beam("Say: ", schema={"type": "number", "minimum": 1, "maximum": 1}, width=6, max_tokens=6, alpha=0.0)
    assert [float(one.value) for one in loose.alternatives] == [1.0]


def test_a_text_that_is_cut_off_but_valid_counts_where_nothing_valid_ended(tiny: EmbeddedEngine) -> None:
    result = tiny.beam("Say: ", regex="[ab]+", width=2, max_tokens=3)
    assert result.valid and all(one.finish_reason in ("grammar", "length") for one in result.alternatives)
    context = tiny.capabilities.context
    with (
        EmbeddedEngine("tiny", kv_blocks=4096, block_size=4) as engine,
        pytest.raises(NoValidError, match="where the context ends"),
    ):
        engine.beam([65] * (context - 4), grammar=SCHEMA, width=2)


def test_usage_says_what_the_width_cost(tiny: EmbeddedEngine) -> None:
    prompt = "a prompt of exactly that many tokens, which no other test has used before"
    narrow, wide = (tiny.beam(prompt, grammar=SCHEMA, width=width, max_tokens=48).usage for width in (1, 6))
    size, length = 4, len(tiny.tokenizer.encode(prompt))
    assert wide.rows > narrow.rows and wide.kv_blocks_peak > narrow.kv_blocks_peak
    assert wide.kv_blocks_shared >= length // size
    assert wide.kv_blocks_peak <= -(-length // size) + 6 * (48 // size + 1)
    assert narrow.cached_tokens == 0 and wide.cached_tokens >= length - size
