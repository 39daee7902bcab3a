"""Crew: how many threads a pass gets, all that are allowed or one, whichever has been faster lately.

In: rows of a pass, afterwards the seconds it took.   Out: a number of threads.
Knows nothing about: what the threads do; their number never changes a result.
Why: threads meet at every stage of a pass, so one whose processor was taken away keeps the others waiting. On a machine that
something else keeps busy two threads were four times slower than one; on two hyper-threads of one core hardly faster.
Invariants: the loser is tried again, ever more rarely while it goes on losing; several threads may ask.
"""

from __future__ import annotations

_SOONEST, _LATEST = 2, 512  # passes between two trials of the loser: soon at first, what made it lose may have been chance
_WEIGHT = 0.3  # of the newest measurement


class Crew:
    """Measurements of passes by size (powers of two of rows)."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}

    def choose(self, rows: int, most: int) -> int:
        """1 or `most` threads for a pass of so many rows."""
        return self._size(rows, most).choose(most) if most > 1 else 1

    def learn(self, rows: int, most: int, threads: int, seconds: float) -> None:
        """A pass with `threads` of `most` threads took so long."""
        if most > 1:
            self._size(rows, most).learn(threads, seconds / rows)

    def _size(self, rows: int, most: int) -> _Size:
        key = rows.bit_length() * (1 << 20) + most
        return self._sizes.get(key) or self._sizes.setdefault(key, _Size())


class _Size:
    """Seconds a row with each number of threads, and when the slower number is tried next."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._best: int | None = None  # the faster number, None until both were measured
        self._wait = _SOONEST
        self._passes = 0

    def choose(self, most: int) -> int:
        best = self._best
        if best is None:
            return 1 if most in self._seconds else most
        self._passes += 1
        if self._passes < self._wait:
            return best
        self._passes = 0
        return most if best == 1 else 1

    def learn(self, threads: int, seconds: float) -> None:
        before, taken = self._best, self._seconds
        # of the loser the newest says all: what it took long ago, perhaps in its first pass of all, is no reason to leave it
        known = taken[threads] if threads in taken and threads == before else seconds
        taken[threads] = known + _WEIGHT * (seconds - known)
        if len(taken) > 1:
            self._best = min(taken, key=taken.__getitem__)
        if before is None or self._best != before:
            self._wait = _SOONEST
        elif threads != before:  # the loser lost again
            self._wait = min(2 * self._wait, _LATEST)
