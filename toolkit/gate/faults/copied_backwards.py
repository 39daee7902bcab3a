"""Fault: copy-on-write copies the new block over the old one."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.kv.table import BlockCopy

NAME = "copied backwards"
WHY = "source and target of a block copy change places: whoever shares the block loses it as well (the class of sglang#13741)"
CATCH = "sampled texts"


def break_(engine: EmbeddedEngine) -> None:
    copy = engine._forward.store.copy

    def backwards(copies: Sequence[BlockCopy]) -> None:
        copy([BlockCopy(target, source, count) for source, target, count in copies])

    engine._forward.store.copy = backwards  # type: ignore[method-assign]
