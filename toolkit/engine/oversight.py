"""Oversight: what an engine holds against its own speculation - how often it is audited, and the breaker.

Knows nothing about: how texts are read again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from toolkit.engine.audit import chosen
from toolkit.engine.breaker import Breaker

SILENT = "what was streamed is not this text: speculation was found to be wrong too late, and nothing more was streamed"


@dataclass(slots=True)
class Oversight:
    """share: of the speculated texts that are audited, 0 to 1. ties: nats by which equal rows may differ on this engine."""

    share: float = 0.0
    ties: float = 0.0
    breaker: Breaker = field(default_factory=Breaker)

    def wants(self, request_id: str, index: int, seed: int) -> bool:
        """Whether a speculated text is to be audited; on hold, all that are still running are."""
        return self.breaker.is_held or (self.share > 0.0 and chosen(self.share, request_id, index, seed))
