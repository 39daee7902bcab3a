"""ETA: how long the rest will take, from the last quarter of what has passed.

    left = (total - done) * (t - t') / (done - done')        t' about a quarter of the time ago

A change of speed is forgotten as the job goes on, and what is left is measured over ever longer stretches, so the estimate converges.
In: (done, now) as they come.   Out: seconds.   Knows nothing about: records. Memory: at most _KEPT points.
"""

from __future__ import annotations

from bisect import bisect_left

_KEPT = 128


class Eta:
    """`done` at the start is not counted: it is an earlier run's."""

    def __init__(self, done: int, now: float) -> None:
        self._times = [now]
        self._dones = [done]
        self._apart = 0.0  # seconds between points that are kept

    def note(self, done: int, now: float) -> None:
        """So many were done at this moment."""
        if now - self._times[-1] < self._apart and len(self._times) > 1:
            return
        self._times.append(now)
        self._dones.append(done)
        if len(self._times) > _KEPT:
            del self._times[1::2], self._dones[1::2]
            self._apart = 2 * (self._times[-1] - self._times[0]) / _KEPT

    def left(self, done: int, total: int, now: float) -> float | None:
        """Seconds until `total` are done; None while nothing is known."""
        then = now - (now - self._times[0]) / 4
        place = min(bisect_left(self._times, then), len(self._times) - 1)
        while place and self._dones[place] >= done:
            place -= 1
        made, seconds = done - self._dones[place], now - self._times[place]
        return (total - done) * seconds / made if made > 0 else None
