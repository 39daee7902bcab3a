"""Asks: what it takes to ask a drafter for guesses whose chances it knows, and what that brings.

In: seconds of an ask, seconds of plain decoding that its guesses should save.   Out: means of both over all requests, the newest counting most,
and whether asking pays in one of them.
Knows nothing about: drafters, what a line does with the answer (stride.py).
"""

from __future__ import annotations

from dataclasses import dataclass

_LEAN = 6.0  # asks that a request's leaning on all requests' counts for
_MEMORY = 0.985  # what a request's counts keep from ask to ask
_FORGETS = 0.999  # and from pass to pass while it does not ask: some day it tries again, whatever others do
_IN_DOUBT = 1.25  # times what they bring that asks may take until they are given up: what one brings is nothing or much
_FIRST = 24  # asks that are made whatever they bring: most of them bring nothing, so that fewer say little


@dataclass(slots=True)
class Asks:
    """What it takes to ask a drafter for guesses of known chances, and what that brings, the newest counting most."""

    weight: float  # of the newest
    before: int  # asks that it begins with, which took and brought nothing
    seconds: float = 0.0  # an ask, to read what the drafter was told during a rest not counted
    saved: float = 0.0  # of a line's time, those in vain counted, as far as the chances are true
    count: int = 0
    rested: int = 0  # passes of any line without one, since the last
    pays: bool = True  # as far as one could say; requests begin with this

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
        self.pays = self.is_new or self.seconds <= self.saved * (_IN_DOUBT if self.pays else 1.0)


@dataclass(slots=True)
class OwnAsks:
    """What asks of one request brought: a text that copies gives up a head which pays in chats, and says little to the chats that run beside it.

    Valid for the Asks that it leans on; for another number of lines another one is begun.
    """

    every: Asks
    goes_on: bool = True
    count: float = 0.0
    times: float = 0.0  # sum of what an ask brought over what one takes
    clock: int = 0

    def learn(self, saved: float, clock: int) -> None:
        """One more."""
        self._fade(clock)
        self.count = _MEMORY * self.count + 1
        self.times = _MEMORY * self.times + (saved / self.every.seconds if self.every.seconds > 0.0 else 1.0)

    def pay(self, clock: int) -> bool:
        """Whether asking brings more than it takes; in doubt what was done goes on."""
        self._fade(clock)
        every = self.every
        if every.is_new or every.seconds <= 0.0:
            return True
        times = (self.times + _LEAN * every.saved / every.seconds) / (self.count + _LEAN)
        self.goes_on = times * (_IN_DOUBT if self.goes_on else 1.0) >= 1.0
        return self.goes_on

    def _fade(self, clock: int) -> None:
        kept = _FORGETS ** max(0, clock - self.clock)
        self.count, self.times, self.clock = kept * self.count, kept * self.times, clock
