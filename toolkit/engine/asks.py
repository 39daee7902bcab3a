"""Asks: what it takes to ask a drafter for guesses whose chances it knows, and what that brings.

In: seconds of an ask, seconds of plain decoding that its guesses should save.   Out: means of both over all requests, the newest counting most,
and whether asking pays in one of them.
Knows nothing about: drafters, when to ask (pace.py).
"""

from __future__ import annotations

from dataclasses import dataclass

_LEAN = 12.0  # asks that a request's leaning on all requests' counts for
_MEMORY = 0.97  # what a request's counts keep from ask to ask
_IN_DOUBT = 1.25  # times what they bring that asks may take until they are given up: what one brings is nothing or much
_FIRST = 24  # asks of an engine that are made whatever they bring: most of them bring nothing, so that fewer say little


@dataclass(slots=True)
class Asks:
    """What it takes to ask a drafter for guesses of known chances, and what that brings, the newest counting most."""

    weight: float  # of the newest
    before: int  # asks that it begins with, which took and brought nothing
    seconds: float = 0.0  # an ask, to read what the drafter was told during a rest not counted
    saved: float = 0.0  # of a line's time, those in vain counted, as far as the chances are true
    count: int = 0
    rested: int = 0  # passes of any line without one, since the last

    @property
    def is_new(self) -> bool:
        """Whether too little was seen to say anything."""
        return self.count < _FIRST

    def learn(self, seconds: float | None, saved: float) -> None:
        """One more; seconds: None = they say nothing."""
        self.count += 1
        weight = max(self.weight, 1 / (self.before + self.count))
        if seconds is not None:
            self.seconds += weight * (seconds - self.seconds)
        self.saved += weight * (saved - self.saved)
        self.rested = 0


@dataclass(slots=True)
class OwnAsks:
    """The same of one request: a text that copies gives up a head which pays in chats, and says little to the chats that run beside it."""

    count: float = 0.0
    seconds: float = 0.0  # sums
    saved: float = 0.0
    goes_on: bool = True

    def learn(self, seconds: float, saved: float) -> None:
        """One more."""
        self.count = _MEMORY * self.count + 1
        self.seconds = _MEMORY * self.seconds + seconds
        self.saved = _MEMORY * self.saved + saved

    def pay(self, every: Asks) -> bool:
        """Whether asking brings more than it takes, which leans on every request's; in doubt it goes on."""
        seconds, saved = self.seconds + _LEAN * every.seconds, self.saved + _LEAN * every.saved
        self.goes_on = every.is_new or seconds <= saved * (_IN_DOUBT if self.goes_on else 1.0)
        return self.goes_on
