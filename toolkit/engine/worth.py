"""Worth: how many guesses pay for their rows, where the drafter knows the chance of each.

    guesses of joint probability p1 >= p2 >= ...; the first n are worth most for which
        L * trust * (p1 + ... + pn) - rate * (cost(R + L * (1 + n)) - cost(R + L))        is largest

and none where what is drafted in their place, k tokens of another part of the drafter, is worth more. rate is what time brings otherwise, tokens
per second at that k (pace.py, as L, R and cost), without another part those of plain decoding; trust is the share of
what was promised that came true, over this request: it leans on 1, and on nothing that is long ago.
So a text that copies is drafted far ahead where it copies, whatever its other guesses are like.
In: probabilities, what became of them.   Out: a number of guesses.
Knows nothing about: drafters, trees.
Source: a reward over time, compared with the best rate there is (renewal rewards); own.
"""

from __future__ import annotations

from collections.abc import Sequence

REACH = 16  # guesses that are looked at
_PRIOR = 2.0  # tokens that trust in a drafter counts for
_MEMORY = 0.99  # what counts keep from pass to pass


class Trust:
    """Of the tokens that one sample's drafter promised, those that came: more or less than 1."""

    def __init__(self) -> None:
        self._promised = self._kept = 0.0

    def fade(self) -> None:
        """A pass later."""
        self._promised *= _MEMORY
        self._kept *= _MEMORY

    def learn(self, promised: float, kept: int) -> None:
        """Guesses with so many tokens in sum of their probabilities; so many of them were right."""
        self._promised += promised
        self._kept += kept

    @property
    def share(self) -> float:
        return (self._kept + _PRIOR) / (self._promised + _PRIOR)


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
