"""Fault: a sequence writes into a block that it shares."""

from __future__ import annotations

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.kv.table import BlockTable

NAME = "shared block written"
WHY = "reference counts are not asked before a write: samples of one prompt overwrite each other (the class of sglang#13741)"


class Greedy(BlockTable):
    """Takes every block for its own."""

    def _copies_on_write(self) -> bool:
        return False

    def fork(self) -> BlockTable:
        twin = super().fork()
        twin.__class__ = Greedy
        return twin


def break_(engine: EmbeddedEngine) -> None:
    forward = engine._forward
    forward.table = lambda: Greedy(forward.pool, forward.block_size)  # type: ignore[method-assign]
