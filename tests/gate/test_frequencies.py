"""Tests of frequencies: exact p-values against enumeration, the promised rate of false alarms, and what is seen."""

from __future__ import annotations

import random
from itertools import combinations
from math import comb

import pytest

from toolkit.gate.frequencies import ALARM, Heap, Text, compare, features, fisher, shift


@pytest.mark.parametrize(("a", "b", "n", "m"), [(0, 0, 4, 4), (4, 0, 4, 4), (1, 3, 5, 4), (2, 2, 5, 3), (3, 0, 3, 6)])
def test_fishers_p_value_is_that_of_all_ways_to_share_the_labels_out(a: int, b: int, n: int, m: int) -> None:
    """The slow twin: every choice of n of n + m texts is equally likely to be the first side."""
    has = [1] * (a + b) + [0] * (n + m - a - b)
    ways = [sum(has[i] for i in chosen) for chosen in combinations(range(n + m), n)]
    weight = {x: ways.count(x) for x in set(ways)}
    extreme = sum(count for x, count in weight.items() if weight[x] <= weight[a])
    assert fisher(a, b, n, m) == pytest.approx(extreme / comb(n + m, n))


def drawn(dice: random.Random, count: int, weights: list[float], length: int = 6) -> Heap:
    return [Text(tuple(dice.choices(range(len(weights)), weights, k=length))) for _ in range(count)]


def test_of_200_comparisons_of_one_distribution_none_is_refused() -> None:
    dice = random.Random(0)
    found = [compare(drawn(dice, 60, [4, 3, 2, 1]), drawn(dice, 60, [4, 3, 2, 1])) for _ in range(200)]
    assert not any(each.differs for each in found)
    # Bonferroni promises P(p <= x) <= x; a wrong test would have far more than 20 of 200 below 0.1
    assert sum(each.p <= 0.1 for each in found) <= 30


def test_a_shift_as_large_as_the_stated_power_is_refused_nine_times_of_ten() -> None:
    dice, count = random.Random(1), 96
    tests = compare(drawn(dice, count, [1, 1]), drawn(dice, count, [1, 1])).tests
    change = shift(count, tests, 0.5)
    assert change is not None and 0.1 < change < 0.45
    # only the first token is shifted, so that no other feature helps
    refused = 0
    for _ in range(100):
        one = drawn(dice, count, [1, 1])
        two = [Text((int(dice.random() < 0.5 + change), *text.ids[1:])) for text in drawn(dice, count, [1, 1])]
        refused += compare(one, two).differs
    assert refused >= 80


def test_what_only_the_order_or_the_likelihood_tells_is_refused() -> None:
    dice = random.Random(2)
    one = drawn(dice, 120, [1, 1])
    two = [Text(tuple(sorted(text.ids))) for text in drawn(dice, 120, [1, 1])]  # the same tokens, in order
    assert compare(one, two).differs
    plain = [Text(text.ids, dice.gauss(0, 1)) for text in one]
    other = [Text(text.ids, dice.gauss(-2, 1)) for text in one]
    found = compare(plain, other)
    assert found.differs and found.feature.startswith("likelihood")
    assert found.record()["alarm"] == ALARM and found.record()["power"]["detects_at_0.5"]


def test_nothing_to_compare_is_no_difference() -> None:
    assert compare([], []).p == 1.0 and compare([], []).tests == 0
    assert shift(0, 0, 0.5) is None and shift(10, 5, 0.5) is None  # ten texts can show nothing


def test_features_of_a_text() -> None:
    found = features(Text((7, 7, 5), -1.0), [-2.0, 0.0])
    assert found["token 0"] == 7 and found["tokens 1 and 2"] == (7, 5) and found["length"] == 3
    assert found["distinct tokens"] == 2 and found["longest run"] == 2 and found["likelihood, in quarters"] == 1
