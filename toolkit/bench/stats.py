"""Statistics: intervals, paired tests and F1 for small samples.

In: counts and lists of numbers.   Out: floats (shares in 0..1, natural units otherwise).
Knows nothing about: what was counted.
Source: Wilson (1927) score interval; the sign test is the exact two-sided binomial test over discordant pairs (McNemar, exact).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

Z95 = NormalDist().inv_cdf(0.975)


def wilson(hits: int, n: int) -> tuple[float, float]:
    """95 % Wilson interval of a share; (0, 1) when nothing was seen."""
    if n == 0:
        return 0.0, 1.0
    share, z2 = hits / n, Z95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def sign_test(better: int, worse: int) -> float:
    """Two-sided p-value of `better` against `worse` discordant pairs under a fair coin; 1 when there is none."""
    n = better + worse
    tail = sum(math.comb(n, i) for i in range(min(better, worse) + 1))
    return min(1.0, 2 * tail / float(2**n))


def quantile(values: Sequence[float], q: float) -> float:
    """Linear interpolation between order statistics; NaN-free: raises ValueError on nothing."""
    if not values:
        raise ValueError("a quantile of no values does not exist")
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Sequence[float]) -> float:
    return quantile(values, 0.5)


def f1(right: int, wrong: int, missed: int) -> tuple[float, float, float]:
    """Micro precision, recall, F1; each 0 where its denominator is 0."""
    precision = right / (right + wrong) if right + wrong else 0.0
    recall = right / (right + missed) if right + missed else 0.0
    total = 2 * right + wrong + missed
    return precision, recall, 2 * right / total if total else 0.0
