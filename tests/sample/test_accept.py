"""Acceptance at one node: what is refused, what happens at the edges of float arithmetic, and that seeds mean the same."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torch import Tensor

from toolkit.contracts import SamplingParams
from toolkit.errors import EngineError
from toolkit.sample.accept import SLACK, checked, choose, dense, invert, residual
from toolkit.sample.draw import draw, generator

WARM = SamplingParams(temperature=0.9, top_k=20, top_p=0.95)


def logits(seed: int, size: int = 50) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 2


def scripted(*numbers: float) -> Callable[..., Tensor]:
    left = list(numbers)
    return lambda *_, **__: torch.tensor(left.pop(0), dtype=torch.float64)


def test_where_nothing_was_drawn_the_same_seed_gives_the_tokens_of_plain_decoding() -> None:
    plain_random, random = generator(3), generator(3)
    accepted = 0
    for step in range(200):
        row = logits(step)
        children = row.topk(3).indices.tolist()
        token, child = choose(row, WARM, random, children, None)
        assert token == draw(row, WARM, plain_random)
        assert (children[child] == token) if child is not None else token not in children
        accepted += child is not None
    assert 0 < accepted < 200


def test_greedy_takes_the_argmax_whatever_was_drawn_and_uses_no_random_number() -> None:
    row = torch.tensor([0.0, 3.0, -torch.inf, 1.0])
    q = torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    random = generator(0)
    before = random.get_state()
    assert choose(row, SamplingParams(), random, [2, 1], q) == (1, 1)
    assert choose(row, SamplingParams(), random, [2, 0]) == (1, None)
    assert choose(row, SamplingParams(), random, []) == (1, None)
    assert torch.equal(random.get_state(), before)


def test_a_child_that_the_target_forbids_is_refused_and_never_comes_back() -> None:
    row = torch.tensor([0.0, 1.0, -torch.inf, 0.5])
    q = torch.tensor([[0.1, 0.1, 0.7, 0.1], [1 / 3, 1 / 3, 0.0, 1 / 3]])
    random = generator(1)
    for _ in range(300):
        token, child = choose(row, SamplingParams(temperature=1.0), random, [2, 0], q)
        assert token != 2
        assert child in (None, 1)


def test_without_children_the_draw_is_that_of_plain_decoding() -> None:
    row = logits(4)
    assert choose(row, WARM, generator(5), [], torch.empty(0, 50)) == (draw(row, WARM, generator(5)), None)


def test_a_float32_q_that_sums_to_one_only_nearly_is_made_to_sum_to_one() -> None:
    q = torch.full((1, 3), (1 + SLACK / 2) / 3)
    rows = checked(q, [1], 3)
    assert rows.dtype == torch.float64
    assert abs(float(rows.sum()) - 1.0) < 1e-15


def test_a_residual_without_mass_falls_back_to_p() -> None:
    p = torch.tensor([0.25, 0.75, 0.0], dtype=torch.float64)
    assert torch.equal(residual(p, p), p)
    assert torch.equal(residual(p, torch.tensor([0.25, 0.75 + 1e-16, 0.0], dtype=torch.float64)), p)
    assert residual(p, torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)).tolist() == [0.0, 1.0, 0.0]


def test_dust_that_a_subtraction_leaves_is_a_distribution_of_tokens_that_p_has() -> None:
    p = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    rest = residual(p, torch.tensor([0.5, 0.5 - 1e-16, 1e-16], dtype=torch.float64))
    assert abs(float(rest.sum()) - 1.0) < 1e-15
    assert float(rest[2]) == 0.0


@pytest.mark.parametrize("at", [0.0, 0.3, 1.0 - 2.0**-53])
def test_a_draw_never_lands_on_a_token_without_probability(at: float) -> None:
    p = torch.tensor([0.0, 0.3, 0.0, 0.7 - 1e-16, 0.0], dtype=torch.float64)
    with mock.patch.object(torch, "rand", scripted(at)):
        assert invert(p, generator(0)) in (1, 3)


def test_a_certain_child_is_accepted_at_the_largest_uniform_number_and_an_impossible_one_refused_at_zero() -> None:
    row = torch.tensor([0.0, -torch.inf])
    params = SamplingParams(temperature=1.0)
    with mock.patch.object(torch, "rand", scripted(1.0 - 2.0**-53)):
        assert choose(row, params, generator(0), [0], torch.tensor([[1.0, 0.0]])) == (0, 0)
    with mock.patch.object(torch, "rand", scripted(0.0, 0.0)):
        assert choose(row, params, generator(0), [1], torch.tensor([[0.5, 0.5]])) == (0, None)


def test_the_dense_distribution_is_that_of_the_filters() -> None:
    p = dense(logits(6), WARM)
    assert p.dtype == torch.float64
    assert abs(float(p.sum()) - 1.0) < 1e-12
    assert 1 < int((p > 0).sum()) <= 20


GOOD = [0.5, 0.3, 0.2]


@pytest.mark.parametrize(
    ("q", "children", "complaint"),
    [
        ([GOOD], [0, 1], r"q \[1, 3\] must be \[2, 3\]"),
        ([[0.5, 0.5]], [0], r"q \[1, 2\] must be \[1, 3\]"),
        ([[0.5, 0.3, 0.1]], [0], "sums to 0.9"),
        ([[0.5, 0.3, 0.3]], [0], "sums to 1.1"),
        ([[float("nan"), 0.5, 0.5]], [1], "sums to nan"),
        ([[float("inf"), 0.0, 0.0]], [0], "sums to inf"),
        ([[1.2, -0.2, 0.0]], [0], "least entry is -0.2"),
        ([[1.0, 0.0, 0.0]], [1], "token 1 has no probability"),
        ([GOOD], [3], "token 3 has no probability"),
        ([GOOD], [-1], "token -1 has no probability"),
        ([GOOD, GOOD], [0, 1], "without replacement"),
    ],
)
def test_a_q_that_nothing_can_have_been_drawn_from_is_refused_before_a_number_is_drawn(
    q: list[list[float]], children: list[int], complaint: str
) -> None:
    random = generator(0)
    before = random.get_state()
    with pytest.raises(EngineError, match=complaint):
        choose(logits(1, 3), SamplingParams(temperature=1.0), random, children, torch.tensor(q))
    assert torch.equal(random.get_state(), before)
