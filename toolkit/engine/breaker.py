"""Breaker: too many faults of speculation in a window of texts, and the engine decodes plainly until someone says otherwise.

    CLOSED --(more than `most` faults among the last `window` speculated texts)--> HOLD --(reset)--> CLOSED

Knows nothing about: what a fault is, who resets (the gate, after it has passed). Thread-safe.
"""

from __future__ import annotations

import logging
import threading
from collections import deque

from toolkit.contracts import require

log = logging.getLogger(__name__)
CLOSED, HOLD = "CLOSED", "HOLD"


class Breaker:
    """`most` None never trips."""

    def __init__(self, most: int | None = 2, window: int = 1000) -> None:
        ok = most is None or (isinstance(most, int) and not isinstance(most, bool) and most >= 0)
        require(ok, "breaker most", most, "None (never) or an integer >= 0")
        ok = isinstance(window, int) and not isinstance(window, bool) and 1 <= window <= 1_000_000
        require(ok, "breaker window", window, "an integer from 1 to 1000000")
        self.most, self.window = most, window
        self.trips = 0
        self.reason = ""  # of the state it is in
        self._lock = threading.Lock()
        self._recent: deque[bool] = deque(maxlen=window)
        self._state = CLOSED

    @property
    def state(self) -> str:
        """CLOSED or HOLD."""
        return self._state

    @property
    def is_held(self) -> bool:
        return self._state == HOLD

    def count(self, fault: bool) -> None:
        """A text that was speculated has ended, well or not."""
        with self._lock:
            self._recent.append(fault)
            faults = sum(self._recent) if fault else 0
            if self.most is None or self.is_held or faults <= self.most:
                return
            self._state, self.trips = HOLD, self.trips + 1
            self.reason = f"{faults} faults among the last {len(self._recent)} speculated texts, {self.most} are allowed"
        log.warning("speculation is on HOLD: %s", self.reason)

    def reset(self, reason: str) -> None:
        """Speculate again, the past forgotten. `reason` is logged: who has checked what."""
        require(isinstance(reason, str) and reason != "", "breaker reset reason", reason, "a text that says what was checked")
        with self._lock:
            was, self._state, self.reason = self._state, CLOSED, reason
            self._recent.clear()
        log.warning("speculation is %s again after %s: %s", CLOSED, was, reason)
