"""Fault: a character of several bytes loses one that came in a burst."""

from __future__ import annotations

import random

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.gate.faults.rewrite import rewriting

NAME = "UTF-8 cut"
WHY = "an emoji whose bytes were split 8 + 1 over two bursts became U+FFFD (ai-dynamo#12688, mlx-vlm#1778)"
CATCH = "greedy texts"


def cut(burst: list[int], dice: random.Random) -> list[int]:
    places = [place for place, token in enumerate(burst) if 0x80 <= token < 0xC0]
    if places:
        del burst[dice.choice(places)]
    return burst


def break_(engine: EmbeddedEngine) -> None:
    rewriting(NAME, cut, engine)
