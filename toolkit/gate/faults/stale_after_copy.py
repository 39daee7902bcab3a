"""Fault: copy-on-write gives a sequence a block of its own and copies nothing into it."""

from __future__ import annotations

from toolkit.engine.embedded import EmbeddedEngine

NAME = "stale after copy"
WHY = "a forked sequence reads what another request left in its new block (sglang PR#19897: NaN on a radix hit, memory never written)"
CATCH = "sampled texts"


def break_(engine: EmbeddedEngine) -> None:
    engine._forward.store.copy = lambda copies: None  # type: ignore[method-assign]
