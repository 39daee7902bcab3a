"""Worth: how many guesses pay for their rows, where the drafter knows the chance of each.

    guesses of joint probability p1 >= p2 >= ...; the first n are worth most for which
        L * trust * (p1 + ... + pn) - rate * (cost(R + L * (1 + n)) - cost(R + L))        is largest

and none where what is drafted in their place, k tokens of another part of the drafter, is worth more. rate is what time brings otherwise, tokens
per second at that k (pace.py, as L, R and cost), without another part those of plain decoding; trust is the share of
what was promised that came true, over this request: it leans on the share of all requests, which leans on 1, and both on nothing that is long ago.
So a text that copies is drafted far ahead where it copies, whatever its other guesses are like.
In: probabilities, what became of them.   Out: a number of guesses.
Knows nothing about: drafters, trees.
Source: a reward over time, compared with the best rate there is (renewal rewards); own.
"""

from __future__ import annotations

from collections.abc import Sequence

REACH = 16  # guesses that are looked at
_PRIOR = 2.0  # tokens that trust in a drafter counts for
_MEMORY = 0.99  # what a request's counts keep from pass to pass
_MEMORY_OF_ALL = 0.998  # and those of all requests, from any one's pass to the next: some day everything is tried again


class Trust:
    """Of the tokens that a drafter promised one sample, those that came: more or less than 1. `of_all` is that of an engine's samples together."""

    def __init__(self, of_all: Trust | None = None) -> None:
        self._of_all = of_all
        self._promised = self._kept = 0.0

    def fade(self) -> None:
        """A pass later."""
        memory = _MEMORY_OF_ALL if self._of_all is None else _MEMORY
        self._promised *= memory
        self._kept *= memory
        if self._of_all is not None:
            self._of_all.fade()

    def learn(self, promised: float, kept: int) -> None:
        """Guesses with so many tokens in sum of their probabilities; so many of them were right."""
        self._promised += promised
        self._kept += kept
        if self._of_all is not None:
            self._of_all.learn(promised, kept)

    @property
    def share(self) -> float:
        prior = _PRIOR * (1.0 if self._of_all is None else self._of_all.share)
        return (self._kept + prior) / (self._promised + _PRIOR)


def worthwhile(gains: Sequence[float], prices: Sequence[float], *, least: float = 0.0) -> tuple[int, float]:
    """How many of the guesses to take, and what they leave: gains[i] of the next one alone, prices[i] of the first i + 1 together, in the same unit.

    None, and nothing, where no number of them leaves more than `least`.
    """
    best, total = max(0.0, least), 0.0
    count = 0
    for i, (gain, price) in enumerate(zip(gains, prices, strict=True), 1):
        total += gain
        if total - price > best:
            best, count = total - price, i
    return count, best if count else 0.0
