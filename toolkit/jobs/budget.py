"""Budget: how many second tries a job may make, so that a sick endpoint is not asked twice for everything.

Knows nothing about: records, engines.   Source: the retry budgets of RPC systems (a share of the calls plus a floor).
"""

from __future__ import annotations

import threading


class RetryBudget:
    """`share` of a try is earned by every record, FLOOR are there from the start. Thread-safe."""

    FLOOR = 10.0

    def __init__(self, share: float) -> None:
        self._share = share
        self._left = self.FLOOR if share else 0.0
        self._lock = threading.Lock()

    def earn(self) -> None:
        """A record was begun."""
        with self._lock:
            self._left += self._share

    def spend(self) -> bool:
        """Whether another try may be made; it is then paid for."""
        with self._lock:
            if self._left < 1:
                return False
            self._left -= 1
            return True
