"""Fault: a node of a draft tree also attends to a node that is none of its ancestors."""

from __future__ import annotations

from dataclasses import replace

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.forward import Feed
from toolkit.kv.view import Span

NAME = "sibling visible"
WHY = "the mask of a draft tree shows siblings, so that a branch is verified with another branch in its context (tree attention, 2305.09781)"
CATCH = "greedy texts"
ARM = "model"


def break_(engine: EmbeddedEngine) -> None:
    span = engine._forward._span

    def nosy(feed: Feed) -> Span:
        found = span(feed)
        paths = [(*(other for other in range(node) if other not in path), *path) for node, path in enumerate(found.paths)]
        return replace(found, paths=tuple(paths))

    engine._forward._span = nosy  # type: ignore[method-assign]
