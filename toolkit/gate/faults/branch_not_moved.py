"""Fault: the keys and values of an accepted branch stay where the tree had them."""

from __future__ import annotations

from toolkit.engine.embedded import EmbeddedEngine

NAME = "branch not moved"
WHY = "after a tree the accepted nodes are not next to each other: what is not compacted is read as another token's (sglang PR#19897)"
CATCH = "greedy texts"


def break_(engine: EmbeddedEngine) -> None:
    engine._forward.store.move = lambda sources, targets: None  # type: ignore[method-assign]
