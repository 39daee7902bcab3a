"""DraftCosts: what a drafter takes for a token that it guesses and for one that it reads, told apart, and what its drafts cost beside it.

    seconds of a draft = guess_s x its depth + read_s x tokens that the drafter was told since the last one

A drafter with keys and values of its own computes the text before it guesses: a prompt before its first guess, after a rest all
that came meanwhile. Taken for the price of a guess, the first prompt would put an end to speculation.
A pass with a draft is also handled at more length than one without: the draft is cut, walked down, settled and told to the drafter.
In: seconds, depth and tokens told, draft by draft.   Out: the two prices, 0 while they are not known.
Knows nothing about: drafters, whether they pay.
"""

from __future__ import annotations

from collections import deque
from statistics import median

FEW = 16  # tokens: what was accepted of one draft and what a grammar forced behind it; to read so many is part of a guess
RECENT = 9  # drafts whose median is the price of a guess: that one of them was held up by others means nothing
_WEIGHT = 0.3  # of the newest reading


class DraftCosts:
    """Seconds a token."""

    def __init__(self) -> None:
        self.guess_s = 0.0
        self.read_s = 0.0
        self.plain_s = 0.0  # what the loop spends on a pass without a draft; 0 while it is not known
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._handled: dict[bool, deque[float]] = {drafted: deque(maxlen=RECENT) for drafted in (False, True)}

    @property
    def handle_s(self) -> float:
        """What the loop spends on a pass with a draft beyond one without; 0 while one of them is not known."""
        plain, drafted = (self._handled[kind] for kind in (False, True))
        return max(0.0, median(drafted) - self.plain_s) if plain and drafted else 0.0

    def handle(self, seconds: float, *, drafted: bool) -> None:
        """The loop was busy for so long with one sample's pass, the drafter's own time not counted."""
        self._handled[drafted].append(seconds)
        if not drafted:
            self.plain_s = median(self._handled[False])

    def learn(self, seconds: float, depth: int, heard: int) -> None:
        """A draft of `depth` tokens took so long, `heard` tokens after the last one.

        Behind many tokens it says what reading costs; of guessing only where that has become cheaper: what was known is then old.
        """
        if heard <= FEW:
            self._see(seconds / depth)
            return
        guess = max(0.0, seconds - self.read_s * heard) / depth
        if guess < self.guess_s:
            self._recent.clear()
            self._see(guess)
        read = max(0.0, seconds - self.guess_s * depth) / heard
        self.read_s = self.read_s + _WEIGHT * (read - self.read_s) if self.read_s else read

    def _see(self, seconds: float) -> None:
        self._recent.append(seconds)
        self.guess_s = median(self._recent)
