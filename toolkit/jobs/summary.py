"""Summary: what a job came to, in counts.

Knows nothing about: files, engines.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from toolkit.contracts import Json


@dataclass(slots=True)
class Summary:
    """What a job came to. Counts cover the whole output, `usage`, `retried` and `elapsed_s` this run only."""

    total: int | None  # None: a stream that has not ended
    done: int
    resumed_at: int
    dropped: int  # whole lines behind one that was gone, cut off and done again
    failures: Counter[str]
    needs_review: int = 0
    retried: int = 0  # failures of earlier runs that were tried again
    stopped: bool = False  # on request, before the end
    elapsed_s: float = 0.0
    usage: Counter[str] = field(default_factory=Counter)

    @property
    def failed(self) -> int:
        return self.failures.total()

    @property
    def valid(self) -> int:
        return self.done - self.failed

    def counts(self) -> dict[str, Json]:
        """How many records came to what."""
        return {
            "records": self.total,
            "done": self.done,
            "valid": self.valid,
            "failed": self.failed,
            "failures": dict(self.failures),
            "needs_review": self.needs_review,
        }

    def fields(self) -> dict[str, Json]:
        """The summary as plain JSON."""
        return {
            **self.counts(),
            "resumed_at": self.resumed_at,
            "dropped": self.dropped,
            "retried": self.retried,
            "stopped": self.stopped,
            "elapsed_s": self.elapsed_s,
            "usage": dict(self.usage),
        }
