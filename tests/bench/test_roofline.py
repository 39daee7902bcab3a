"""Roofline: expected tokens against enumeration, the 27B example by hand, and where speculation stops to pay."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import pytest

from toolkit.bench.roofline import (
    Draft,
    Machine,
    Target,
    break_even,
    expected_tokens,
    explain,
    free_rows,
    plain_rate,
    speculative_rate,
    speedup,
)
from toolkit.errors import UsageError

GPU = Machine(bandwidth=1.79e12, arithmetic=209e12)
BIG = Target(parameters=27e9, weight_bytes=54e9)


def by_enumeration(a: Fraction, tokens: int) -> Fraction:
    """Mean of 1 + (tokens accepted before the first refusal) over all patterns of right and wrong guesses."""
    mean = Fraction(0)
    for pattern in itertools.product((True, False), repeat=tokens):
        chance = math.prod((a if right else 1 - a for right in pattern), start=Fraction(1))
        accepted = next((i for i, right in enumerate(pattern) if not right), tokens)
        mean += chance * (1 + accepted)
    return mean


def test_four_drafts_at_acceptance_point_eight_give_3_36_tokens_a_pass() -> None:
    assert expected_tokens(0.8, 4) == pytest.approx(3.3616)
    assert round(expected_tokens(0.8, 4), 2) == 3.36


@pytest.mark.parametrize("tokens", range(6))
@pytest.mark.parametrize("a", [Fraction(0), Fraction(1, 3), Fraction(4, 5), Fraction(1)])
def test_the_expected_tokens_are_the_mean_over_all_patterns(a: Fraction, tokens: int) -> None:
    assert expected_tokens(float(a), tokens) == pytest.approx(float(by_enumeration(a, tokens)))


@pytest.mark.parametrize(
    "build",
    [
        *(lambda a=a: expected_tokens(a, 2) for a in (-0.1, 1.1, math.nan, True)),
        *(lambda k=k: expected_tokens(0.5, k) for k in (-1, 1.5, 65, True)),
        lambda: Machine(0.0, 1.0),
        lambda: Machine(1.0, math.inf),
        lambda: Target(-1.0, 1.0),
        lambda: Target(1.0, 1.0, -1.0),
        lambda: Draft(0.5, 1, weight_bytes=math.nan),
    ],
)
def test_numbers_that_mean_nothing_are_refused(build: Any) -> None:
    with pytest.raises(UsageError, match="is not allowed"):
        build()


def test_54_gb_at_1_79_tb_a_second_are_33_plain_and_111_speculative_tokens_a_second() -> None:
    draft = Draft(acceptance=0.8, tokens=4)
    assert plain_rate(GPU, BIG, 1) == pytest.approx(1.79e12 / 54e9) == pytest.approx(33.148, abs=1e-3)
    assert speculative_rate(GPU, BIG, draft, 1) == pytest.approx(33.148 * 3.3616, abs=0.01)
    assert free_rows(GPU, BIG) == pytest.approx(54e9 / 1.79e12 * 209e12 / 54e9) == pytest.approx(116.8, abs=0.1)


def test_a_draft_that_reads_as_much_as_the_target_gains_nothing() -> None:
    draft = Draft(0.8, 4, parameters=27e9, weight_bytes=54e9)
    assert speedup(GPU, BIG, draft, 1) == pytest.approx(3.3616 / 5)
    assert break_even(GPU, BIG, draft) == 1


def test_it_stops_to_pay_where_the_rows_of_a_batch_are_no_longer_free() -> None:
    draft = Draft(0.8, 4)
    end = break_even(GPU, BIG, draft)
    assert end is not None
    assert speedup(GPU, BIG, draft, end) <= 1.0 < speedup(GPU, BIG, draft, end - 1)
    # plain: memory-bound; speculative: 5 rows a sequence, arithmetic-bound: equal where 5 B x 54e9 / 209e12 = 3.3616 x 54e9 / 1.79e12
    assert end == math.ceil(3.3616 * 209e12 / 1.79e12 / 5)
    assert speedup(GPU, BIG, draft, 10_000) == pytest.approx(3.3616 / 5)
    assert break_even(GPU, BIG, Draft(1.0, 4)) == next(b for b in range(1, 1000) if b >= free_rows(GPU, BIG))


def test_keys_and_values_are_read_once_a_sequence_with_and_without() -> None:
    heavy = Target(parameters=1e9, weight_bytes=2e9, kv_bytes=2e9)
    machine = Machine(bandwidth=1e12, arithmetic=1e20)
    assert plain_rate(machine, heavy, 4) == pytest.approx(4 / ((2e9 + 4 * 2e9) / 1e12))
    assert speedup(machine, heavy, Draft(0.8, 4), 4) == pytest.approx(3.3616)


def test_arithmetic_a_token_rises_and_weight_bytes_fall() -> None:
    found = explain(GPU, BIG, Draft(0.8, 4, parameters=1e9, weight_bytes=2e9))
    plain, speculative = found["per_token"]["plain"], found["per_token"]["speculative"]
    assert speculative["target_flops"] == pytest.approx(plain["target_flops"] * 5 / 3.3616)
    assert speculative["draft_flops"] == pytest.approx(2e9 * 4 / 3.3616)
    assert speculative["weight_bytes"] + speculative["draft_weight_bytes"] == pytest.approx((54e9 + 8e9) / 3.3616)
    assert [row["batch"] for row in found["batches"] if row["bound"] == "memory"] == [1, 2, 4, 8, 16]
