"""Intervals and tests against values worked out by hand."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest

from toolkit.bench.stats import f1, median, quantile, sign_test, wilson


def test_wilson_of_fifteen_in_fifty_is_the_published_interval() -> None:
    assert wilson(15, 50) == pytest.approx((0.1910, 0.4375), abs=1e-4)


def test_wilson_stays_inside_zero_and_one_and_knows_nothing_of_no_trials() -> None:
    low, high = wilson(0, 10)
    assert low == pytest.approx(0.0, abs=1e-12) and high == pytest.approx(0.2775, abs=1e-4)
    assert wilson(10, 10) == pytest.approx((1 - high, 1.0))
    assert wilson(0, 0) == (0.0, 1.0)


def test_the_sign_test_equals_the_enumeration_of_every_coin_sequence() -> None:
    for better, worse in [(0, 0), (1, 0), (8, 2), (2, 8), (5, 5), (6, 0)]:
        n, extreme = better + worse, abs(better - worse)
        as_far = sum(abs(2 * sum(coins) - n) >= extreme for coins in product((0, 1), repeat=n))
        assert sign_test(better, worse) == pytest.approx(float(Fraction(as_far, 2**n)))


def test_quantiles_interpolate_between_order_statistics() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0]) == 2.5
    assert quantile([0.0, 10.0, 20.0, 30.0, 40.0], 0.25) == 10.0
    with pytest.raises(ValueError, match="no values"):
        median([])


def test_f1_is_zero_and_not_an_error_where_nothing_was_given_or_expected() -> None:
    assert f1(0, 0, 0) == (0.0, 0.0, 0.0)
    assert f1(0, 0, 3) == (0.0, 0.0, 0.0)
    assert f1(3, 1, 2) == pytest.approx((0.75, 0.6, 2 / 3))
