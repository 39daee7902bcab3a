"""Flow options: how fast and how stubbornly a job is run; nothing here changes what comes out.

In: numbers.   Out: a checked record, and the parts that act by it.   Knows nothing about: records, engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from toolkit.contracts import require
from toolkit.jobs.budget import RetryBudget
from toolkit.jobs.concurrency import MOST, Adaptive, Concurrency, Fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """in_flight: records decoded together, a number or "auto" (found by trying). record_timeout_s: seconds for one try of a record,
    None = any. retries: tries after the first where an engine erred or was too slow. retry_share: second tries that all records
    together may make, as a share of them (ten are free).
    """

    in_flight: int | Literal["auto"] = 8
    record_timeout_s: float | None = None
    retries: int = 2
    retry_share: float = 0.1

    def __post_init__(self) -> None:
        number = isinstance(self.in_flight, int) and not isinstance(self.in_flight, bool) and 1 <= self.in_flight <= MOST
        require(number or self.in_flight == "auto", "in_flight", self.in_flight, f"an integer from 1 to {MOST}, or auto")
        limit = self.record_timeout_s
        require(limit is None or 0 < limit < float("inf"), "record_timeout_s", limit, "None or a number of seconds > 0")
        require(isinstance(self.retries, int) and 0 <= self.retries <= 100, "retries", self.retries, "an integer from 0 to 100")
        require(0 <= self.retry_share <= 1, "retry_share", self.retry_share, "a number from 0 to 1")

    def concurrency(self) -> Concurrency:
        """A fresh one."""
        return Fixed(self.in_flight) if isinstance(self.in_flight, int) else Adaptive()

    def budget(self) -> RetryBudget:
        """A fresh one."""
        return RetryBudget(self.retry_share)
