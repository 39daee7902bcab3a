"""Concurrency: how many records are decoded together, fixed or found by trying.

`Fixed` is a number. `Adaptive` climbs while more records together mean more records a second:

    start: double while a window of completions is GAIN faster than the one before, else go back
    then:  rest for some windows, try a quarter more or (in turn) a quarter fewer, keep what is faster, or as fast with fewer;
           a trial that changed nothing doubles the rest
    trouble (a try that timed out, an engine's error): halve at once, at most once a window

In: completions.   Out: `now`, the number allowed at this moment.
Knows nothing about: records, engines. Results do not depend on it. Source: additive/multiplicative control as in TCP (RFC 5681), on
throughput instead of loss.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

GAIN = 1.05
MOST = 256
_LONGEST_REST = 16  # windows


class Concurrency(Protocol):
    """`now` records may run together; told of every record that ended."""

    @property
    def now(self) -> int: ...

    def done(self, *, troubled: bool) -> None: ...


class Fixed:
    """Always the same number."""

    def __init__(self, number: int) -> None:
        self._number = number

    @property
    def now(self) -> int:
        return self._number

    def done(self, *, troubled: bool) -> None:
        """A record ended."""


class Adaptive:
    """Between 1 and `most`; `first` to begin with. Used by one thread."""

    def __init__(self, *, first: int = 4, most: int = MOST, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._base, self._rate = first, 0.0  # what is known to be good, and its records a second
        self._trial: int | None = first
        self._climbing = True
        self._up = True  # direction of the next trial
        self._rest, self._rested = 1, 0
        self._count, self._began = 0, clock()

    @property
    def now(self) -> int:
        return self._trial or self._base

    def done(self, *, troubled: bool) -> None:
        """A record ended; `troubled` if it was tried again or timed out."""
        self._count += 1
        if troubled and (self._count >= self.now or self.now == self._trial):
            self._base, self._trial, self._climbing = max(1, self.now // 2), None, False
            self._rate, self._rested = 0.0, 0
            self._window()
        elif self._count >= max(2 * self.now, 8):
            seconds = max(self._clock() - self._began, 1e-9)
            self._judge(self._count / seconds)
            self._window()

    def _window(self) -> None:
        self._count, self._began = 0, self._clock()

    def _judge(self, rate: float) -> None:
        if self._trial is None:
            self._rate = (self._rate + rate) / 2 if self._rate else rate
            self._rested += 1
            if self._rested >= self._rest:
                self._try()
            return
        better = rate > GAIN * self._rate if self._trial >= self._base else rate * GAIN > self._rate
        if better:
            self._base, self._rate, self._rest = self._trial, rate, 1
        else:
            self._climbing = False
            self._rest = min(2 * self._rest, _LONGEST_REST)
        self._trial, self._rested = None, 0
        if better and self._climbing:
            self._trial = min(2 * self._base, self._most) if self._base < self._most else None

    def _try(self) -> None:
        step = max(1, self._base // 4)
        wanted = self._base + step if self._up else self._base - step
        self._up = not self._up
        self._trial = min(max(1, wanted), self._most)
        if self._trial == self._base:
            self._trial, self._rested = None, 0
