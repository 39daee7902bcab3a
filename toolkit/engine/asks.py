"""Asks: what it takes to ask a drafter for guesses whose chances it knows, and what that brings.

In: seconds of an ask, seconds of plain decoding that its guesses should save.   Out: means of both, the newest counting most.
Knows nothing about: drafters, when to ask (pace.py).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Asks:
    """What it takes to ask a drafter for guesses of known chances, and what that brings, the newest counting most."""

    weight: float  # of the newest
    before: int  # asks that it begins with, which took and brought nothing
    seconds: float = 0.0  # an ask, to read what the drafter was told during a rest not counted
    saved: float = 0.0  # of a line's time, those in vain counted, as far as the chances are true
    count: int = 0
    rested: int = 0  # passes of any line without one, since the last
    pays: bool = True  # as far as one could say

    def learn(self, seconds: float | None, saved: float) -> None:
        """One more; seconds: None = they say nothing."""
        self.count += 1
        weight = max(self.weight, 1 / (self.before + self.count))
        if seconds is not None:
            self.seconds += weight * (seconds - self.seconds)
        self.saved += weight * (saved - self.saved)
        self.rested = 0
