"""Accounting: books that balance, measured beside expected tokens, and work a token - against counting by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.engine.guessers import Scripted, knowing
from toolkit.bench import accounting
from toolkit.bench.roofline import expected_tokens
from toolkit.contracts import Completion, Done, Request, SamplingParams, Timing, Usage
from toolkit.draft.contract import Cost
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.pace import Pace
from toolkit.engine.pass_costs import PassCosts
from toolkit.model.config import ModelConfig

CONFIG = ModelConfig(
    architecture="llama", hidden_size=8, layers=2, heads=2, kv_heads=1, head_dim=4, intermediate=16, vocab_size=32, context=64,
    rope_theta=1e4, rms_eps=1e-5,
)  # fmt: skip
WEIGHTS = 2 * (8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16) + 32 * 8  # q, k and v, o, three of the MLP; the head
MODEL = accounting.Model(config=CONFIG, weight_bytes=WEIGHTS, kv_itemsize=4, draft=Cost(flops=10.0, weight_bytes=20.0))


def chains(accepted: list[int], tokens: int) -> Usage:
    """The books of passes that drafted `tokens` each, after the prompt's own pass."""
    by_position = tuple(sum(each > i for each in accepted) for i in range(max(accepted)))
    return Usage(
        input_tokens=5,
        output_tokens=1 + sum(each + 1 for each in accepted),
        steps=1 + len(accepted),
        verify_passes=len(accepted),
        proposed=tokens * len(accepted),
        accepted=sum(accepted),
        proposed_by_position=(len(accepted),) * tokens,
        accepted_by_position=by_position,
    )


def test_measured_and_expected_agree_where_every_position_has_the_same_acceptance() -> None:
    accepted = [0] * 27 + [1] * 18 + [2] * 12 + [3] * 24  # 54 of 81, 36 of 54, 24 of 36
    usage = chains(accepted, 3)
    assert accounting.trials(usage) == [81, 54, 36]
    assert accounting.conditional(usage) == pytest.approx([2 / 3, 2 / 3, 2 / 3])
    assert accounting.acceptance(usage) == pytest.approx(2 / 3)
    decode = (usage.output_tokens - 1) / (usage.steps - 1)
    assert decode == pytest.approx(expected_tokens(2 / 3, 3))
    assert accounting.expected_per_pass(usage) == pytest.approx(accounting.tokens_per_pass(usage))


def test_a_request_without_drafts_expects_one_token_a_pass() -> None:
    usage = Usage(output_tokens=7, steps=7)
    assert accounting.tokens_per_pass(usage) == accounting.expected_per_pass(usage) == 1.0
    assert accounting.acceptance(usage) == 0.0 and accounting.conditional(usage) == []
    assert accounting.tokens_per_pass(Usage()) == accounting.expected_per_pass(Usage()) == 0.0


def test_a_token_that_the_books_do_not_explain_is_seen() -> None:
    usage = chains([2, 0, 1], 3)
    assert accounting.imbalance(usage) == 0
    again = replace(usage, steps=usage.steps + 3, discarded=3)  # a text that was read again
    assert accounting.imbalance(again) == 0
    assert accounting.imbalance(Usage(output_tokens=usage.output_tokens + 2, steps=usage.steps, accepted=usage.accepted)) == 2


def test_sums_over_requests_add_positions_and_keep_the_highest_peak() -> None:
    one, two = chains([1, 3], 3), chains([1], 4)
    both = accounting.total([one, two])
    assert both.proposed_by_position == (3, 3, 3, 1) and both.accepted_by_position == (3, 1, 1)
    assert both.output_tokens == one.output_tokens + two.output_tokens and accounting.imbalance(both) == 0
    assert accounting.total([Usage(kv_blocks_peak=3, rows=1), Usage(kv_blocks_peak=2, rows=2)]) == Usage(
        kv_blocks_peak=3, rows=3
    )
    assert accounting.total([]) == Usage()


def test_work_a_token_is_counted_as_by_hand() -> None:
    usage = chains([2, 2], 3)  # 7 tokens in 3 passes, 3 + 6 rows, the middle at position 5 + 3.5
    found = accounting.summary(usage, Timing(ttft_s=1.0, e2e_s=3.0), MODEL)["per_token"]
    row = 2 * WEIGHTS + 2 * 2 * (2 * 2 * 4) * 8.5  # weights, then scores and sums over positions: layers x heads x head_dim
    assert found["plain"] == pytest.approx(
        {"target_flops": row, "draft_flops": 0, "weight_bytes": WEIGHTS, "draft_weight_bytes": 0, "kv_bytes": 8.5 * 64}
    )
    assert found["speculative"] == pytest.approx(
        {
            "target_flops": 9 * row / 7,
            "draft_flops": 2 * 10 * 6 / 7,
            "weight_bytes": 3 * WEIGHTS / 7,
            "draft_weight_bytes": 20 * 6 / 7,
            "kv_bytes": 3 * 8.5 * 64 / 7,
        }
    )


def test_the_share_of_the_drafter_is_of_the_time_after_the_first_token() -> None:
    usage = Usage(output_tokens=4, steps=4, draft_s=0.5)
    assert accounting.summary(usage, Timing(ttft_s=1.0, e2e_s=3.0))["draft_share_of_time"] == 0.25
    assert accounting.summary(usage, Timing(ttft_s=1.0, e2e_s=1.0))["draft_share_of_time"] == 0.0


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine("tiny", format="float32", kv_blocks=256, block_size=4, prefix_cache=False) as opened:
        yield opened


def decoded(engine: EmbeddedEngine, request: Request, source: Scripted | None) -> list[Completion]:
    engine._source, engine._pace = source, Pace(PassCosts(), tokens=4, nodes=8)
    return [event.result for event in engine.generate([request]) if isinstance(event, Done)]  # type: ignore[misc]


def test_an_engine_s_own_books_balance_and_speculation_reads_less_and_computes_more(engine: EmbeddedEngine) -> None:
    request = Request(prompt="Tell me: ", sampling=SamplingParams(max_tokens=40, ignore_eos=True, seed=1))
    (plain,) = decoded(engine, request, None)
    line = [*engine.tokenizer.encode("Tell me: "), *plain.token_ids]
    (found,) = decoded(engine, request, Scripted(knowing(line, wrong=0.3)))
    assert found.token_ids == plain.token_ids
    usage, model = accounting.of_request([found]), accounting.model_of(engine)
    assert model is not None and accounting.imbalance(usage) == 0
    assert usage.rows - usage.input_tokens == usage.steps - 1 + usage.proposed
    work = accounting.summary(usage, found.timing, model)["per_token"]
    assert work["speculative"]["weight_bytes"] < work["plain"]["weight_bytes"] == model.weight_bytes
    assert work["speculative"]["target_flops"] > work["plain"]["target_flops"]
    assert 1.5 < accounting.tokens_per_pass(usage) == pytest.approx(len(found.token_ids) / usage.steps)


def test_the_books_of_a_request_are_those_of_all_its_samples(engine: EmbeddedEngine) -> None:
    sampling = SamplingParams(max_tokens=20, temperature=1.0, seed=1, n=3)
    samples = decoded(engine, Request(prompt="Tell me: ", sampling=sampling), Scripted(knowing([], wrong=1.0)))
    usage = accounting.of_request(samples)
    assert usage.output_tokens == sum(len(each.token_ids) for each in samples) and accounting.imbalance(usage) == 0


def test_an_engine_that_runs_elsewhere_has_no_model_to_count_with_and_says_less() -> None:
    found = accounting.summary(Usage(output_tokens=30, passes=12, verify_passes=12, proposed=36, accepted=18))
    assert found["tokens_per_pass"] == 2.5 and found["accepted_of_proposed"] == 0.5
    assert found["acceptance"] is found["expected_tokens_per_pass"] is found["unexplained_tokens"] is None
    assert accounting.model_of(object()) is None  # type: ignore[arg-type]
