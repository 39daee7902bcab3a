"""Frequencies: were two heaps of sampled texts drawn from one distribution? Exact tests, corrected for their number.

    feature of a text     its token at a place, its pair of tokens at a place, its length, its distinct tokens, its longest
                          run, the quarter of all texts that its log-probability is in
    test                  for every value of every feature: how often on each side - Fisher's exact test, two-sided
    correction            Bonferroni, over tests and looks: some true hypothesis is refused with a probability of at most `alarm`, whatever they have in common

In: texts of both sides, all answers to one request.   Out: the smallest corrected p-value, where it was, the power.
Knows nothing about: engines.
Invariants: texts are independent draws; values seen too rarely on both sides together to be refused at all are not tested, which both
sides together decide, so that the rate stands. `Power` is what the test can see: shifts that it misses are not excluded.
Source: Fisher (1922); power: normal approximation for two shares, corrected for the exact test (Casagrande, Pike, Smith 1978).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby, pairwise
from statistics import NormalDist
from typing import Any, NamedTuple

ALARM = 1e-4  # of a whole comparison
PLACES = 12  # tokens of a text that are looked at one by one
_POWER = 0.9
_SHARES = (0.5, 0.1)


class Text(NamedTuple):
    """A sampled text: its token ids, and its log-probability where that is known."""

    ids: tuple[int, ...]
    logprob: float | None = None


Heap = Sequence[Text]


@dataclass(frozen=True, slots=True)
class Comparison:
    """p: the smallest corrected p-value, of `feature` = `value`, which `one` of n and `two` of n texts have."""

    p: float
    tests: int
    texts: int
    feature: str = ""
    value: str = ""
    one: int = 0
    two: int = 0

    @property
    def differs(self) -> bool:
        return self.p <= ALARM

    def record(self) -> dict[str, Any]:
        return {
            "p": self.p, "tests": self.tests, "texts": self.texts, "alarm": ALARM, "differs": self.differs,
            "where": self.feature and f"{self.feature} = {self.value}: {self.one} against {self.two}",
            "power": {f"detects_at_{share:g}": shift(self.texts, self.tests, share) for share in _SHARES},
        }  # fmt: skip


def compare(one: Heap, two: Heap, *, looks: int = 1) -> Comparison:
    """Of as many texts on either side. `looks`: how often whoever asks might have compared; all of them share the rate."""
    cuts = _cuts([*one, *two])
    first, second = (Counter(item for text in heap for item in features(text, cuts).items()) for heap in (one, two))
    least = _least(min(len(one), len(two)))
    seen = [item for item in sorted(first.keys() | second.keys(), key=repr) if first[item] + second[item] >= least]
    texts = min(len(one), len(two))
    if not seen:
        return Comparison(1.0, 0, texts)
    found = [(fisher(first[item], second[item], len(one), len(two)), item) for item in seen]
    p, (feature, value) = min(found, key=lambda each: each[0])
    tests = len(found) * looks
    return Comparison(min(1.0, p * tests), tests, texts, feature, repr(value), first[feature, value], second[feature, value])


def _cuts(texts: Heap) -> list[float]:
    """Quartiles of the log-probabilities of both sides together."""
    scores = sorted(text.logprob for text in texts if text.logprob is not None)
    return [scores[len(scores) * i // 4] for i in (1, 2, 3)] if scores else []


def features(text: Text, cuts: Sequence[float] = ()) -> dict[str, Hashable]:
    """Everything that is compared of one text, each a value of a finite set."""
    ids = text.ids
    found: dict[str, Hashable] = {f"token {i}": token for i, token in enumerate(ids[:PLACES])}
    found |= {f"tokens {i} and {i + 1}": pair for i, pair in enumerate(pairwise(ids[:PLACES]))}
    found["length"] = len(ids)
    found["distinct tokens"] = len(set(ids))
    found["longest run"] = max((sum(1 for _ in run) for _, run in groupby(ids)), default=0)
    if text.logprob is not None:
        found["likelihood, in quarters"] = sum(text.logprob >= cut for cut in cuts)
    return found


@cache
def fisher(a: int, b: int, n: int, m: int) -> float:
    """Two-sided: of n texts here and m there, a and b have the value."""
    whole = _log_choose(n + m, a + b)

    def log(x: int) -> float:
        return _log_choose(n, x) + _log_choose(m, a + b - x) - whole

    seen = log(a) + 1e-9
    return min(1.0, math.fsum(math.exp(each) for x in range(max(0, a + b - m), min(n, a + b) + 1) if (each := log(x)) <= seen))


@cache
def _least(texts: int) -> int:
    """The smallest count, both sides together, that could ever be refused among a hundred tests."""
    return next((k for k in range(1, texts + 1) if fisher(k, 0, texts, texts) <= ALARM / 100), texts + 1)


def shift(texts: int, tests: int, share: float) -> float | None:
    """The smallest change of a value's share that is found in nine of ten comparisons; None where none is."""
    if not texts or not tests:
        return None
    changes = (each / 1000 for each in range(1, 1000) if share + each / 1000 <= 1)
    return next((change for change in changes if _needed(share, change, tests) <= texts), None)


def _needed(share: float, change: float, tests: int) -> float:
    """Texts on each side that it takes to find the change."""
    normal, other = NormalDist(), share + change
    middle = (share + other) / 2
    z = normal.inv_cdf(1 - ALARM / (2 * tests)) * math.sqrt(2 * middle * (1 - middle))
    z += normal.inv_cdf(_POWER) * math.sqrt(share * (1 - share) + other * (1 - other))
    count = (z / change) ** 2
    return count / 4 * (1 + math.sqrt(1 + 4 / (count * change))) ** 2  # an exact test refuses less than the normal one


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
