"""Scores, bounds and choices of beam search, on values small enough to compute by hand."""

from __future__ import annotations

import math

import pytest
import torch

from toolkit.contracts import BeamParams
from toolkit.errors import UsageError
from toolkit.sample.beam import Candidate, best, bound, choose, diversity, score


def test_scores_follow_the_stated_penalties() -> None:
    assert score(-6.0, 4, BeamParams(alpha=1.0)) == -1.5
    assert score(-6.0, 4, BeamParams(alpha=0.0)) == -6.0
    assert score(-6.0, 4, BeamParams(alpha=2.0)) == -6.0 / 16
    assert math.isclose(score(-6.0, 7, BeamParams(alpha=1.0, penalty="gnmt")), -3.0)


@pytest.mark.parametrize("penalty", ["length", "gnmt"])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
def test_no_continuation_of_a_live_hypothesis_beats_the_bound(penalty: str, alpha: float) -> None:
    params = BeamParams(alpha=alpha, penalty=penalty, max_tokens=12)  # type: ignore[arg-type]
    for total in (-0.1, -3.0, -20.0):
        for length in range(1, 13):
            for loss in (0.0, 0.5, 7.0):
                assert score(total - loss, length, params) <= bound(total, params) + 1e-12


def test_the_mask_acts_before_top_k_and_does_not_renormalise() -> None:
    logits = torch.tensor([[5.0, 4.0, 1.0, 0.0]])
    allowed = torch.tensor([[False, False, True, True]])
    norm = math.log(sum(math.exp(v) for v in (5.0, 4.0, 1.0, 0.0)))
    legal = math.log(math.exp(1.0) + math.exp(0.0))
    ((first, second),) = best(logits, allowed, 3)
    assert (
        first[0] == 2 and math.isclose(first[1], 1.0 - norm, abs_tol=1e-5) and math.isclose(first[2], 1.0 - legal, abs_tol=1e-5)
    )
    assert second[0] == 3 and math.isclose(second[1], 0.0 - norm, abs_tol=1e-5)


def slow_best(row: torch.Tensor, allowed: torch.Tensor | None, count: int) -> list[tuple[int, float, float]]:
    legal = row if allowed is None else row.masked_fill(~allowed, -torch.inf)
    ids = legal.argsort(descending=True)[:count].tolist()
    sums = [float(torch.logsumexp(each.double(), 0)) for each in (row, legal)]
    return [(i, float(row[i]) - sums[0], float(row[i]) - sums[1]) for i in ids if legal[i] > -torch.inf]


@pytest.mark.parametrize("size", [3, 64, 100, 261, 5000])
@pytest.mark.parametrize("share", [None, 0.0, 0.002, 0.5])
def test_the_likeliest_tokens_are_those_of_a_whole_sort_whatever_else_is_computed(size: int, share: float | None) -> None:
    random = torch.Generator().manual_seed(size)
    logits = torch.randn(5, size, generator=random) * 8
    logits[0] = torch.arange(size) / 100.0  # all of the likeliest lie in one part
    allowed = None if share is None else torch.rand(5, size, generator=random) < share
    found = best(logits, allowed, 7)
    for i in range(5):
        mask = None if allowed is None else allowed[i]
        expected = slow_best(logits[i], mask, 7)
        assert [one[0] for one in found[i]] == [one[0] for one in expected]
        assert [one[1:] for one in found[i]] == [pytest.approx(one[1:], abs=2e-5) for one in expected]
        assert best(logits[i : i + 1], None if mask is None else mask[None], 7) == [found[i]]


def test_a_row_has_the_same_log_probabilities_alone_and_with_any_number_of_threads() -> None:
    logits = torch.randn(4, 49152, generator=torch.Generator().manual_seed(1)) * 5
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        together, alone = best(logits, None, 5), [best(row[None], None, 5)[0] for row in logits]
        torch.set_num_threads(1)
        assert together == alone == best(logits, None, 5)
    finally:
        torch.set_num_threads(threads)


def candidate(key: float, parent: int, token: int, ends: bool = False) -> Candidate:
    return Candidate(key, parent, token, key, key, ends)


def test_an_end_counts_only_while_fewer_than_width_survivors_precede_it() -> None:
    found = [candidate(-1, 0, 5), candidate(-2, 0, 9, ends=True), candidate(-3, 1, 5), candidate(-4, 1, 9, ends=True)]
    survivors, ended = choose(found, 2)
    assert [c.key for c in survivors] == [-1, -3] and [c.key for c in ended] == [-2]


def test_ties_go_to_the_earlier_parent_then_to_the_lower_token() -> None:
    survivors, _ = choose([candidate(-1, 1, 3), candidate(-1, 0, 8), candidate(-1, 0, 2)], 2)
    assert [(c.parent, c.token) for c in survivors] == [(0, 2), (0, 8)]


def test_diversity_is_nought_for_copies_and_one_for_strangers() -> None:
    assert diversity([[1, 2, 3]]) == 0.0
    assert diversity([[1, 2, 3], [1, 2, 3]]) == 0.0
    assert diversity([[1, 2], [3, 4]]) == 1.0
    assert math.isclose(diversity([[1, 2, 3, 4], [1, 2, 3, 9], [7, 7, 7, 7]]), (0.25 + 1 + 1) / 3)


@pytest.mark.parametrize(
    "given",
    [
        {"width": 0},
        {"width": 257},
        {"alpha": -1.0},
        {"penalty": "hf"},
        {"n": 5},
        {"groups": 3},
        {"diversity": 1.0},
        {"max_tokens": 0},
    ],
)
def test_beam_parameters_outside_their_range_are_refused_by_name(given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=next(iter(given))):
        BeamParams(**given)  # type: ignore[arg-type]
