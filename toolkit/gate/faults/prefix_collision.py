"""Fault: the prefix cache takes any block at the right depth for the one that was asked for."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.engine.embedded import EmbeddedEngine

NAME = "prefix collision"
WHY = "prefixes are compared by a hash that collides, or by their lengths (vllm's prefix hash before 0.9 was Python's, CVE-2025-25183)"
CATCH = "greedy texts"


def break_(engine: EmbeddedEngine) -> None:
    prefix = engine._forward.prefix

    def walk(tokens: Sequence[int], limit: int) -> list[int]:
        found: list[int] = []
        while len(found) < limit:
            parent = found[-1] if found else -1
            number = next((n for n, entry in reversed(prefix._entries.items()) if entry.parent == parent), None)
            if number is None:
                break
            found.append(number)
        return found

    prefix._walk = walk  # type: ignore[method-assign]
