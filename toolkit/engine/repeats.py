"""Repeats: how much of a text stood in it before. Speed and acceptance of a text that loops say nothing about other texts.

In: token ids.   Out: a share. Knows nothing about: engines.
"""

from __future__ import annotations

from collections.abc import Sequence


def repetition(ids: Sequence[int], width: int = 4) -> float:
    """Share of windows of `width` tokens that stood in the text before; 0 for a text that is shorter."""
    windows = [tuple(ids[i : i + width]) for i in range(len(ids) - width + 1)]
    return 1 - len(set(windows)) / len(windows) if windows else 0.0
