"""Fault: two neighbours of a burst change places."""

from __future__ import annotations

import random

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.gate.faults.rewrite import rewriting

NAME = "tokens swapped"
WHY = "siblings of a draft tree committed in the order of their nodes instead of that of the path"
CATCH = "greedy texts"


def swap(burst: list[int], dice: random.Random) -> list[int]:
    place = dice.randrange(max(1, len(burst) - 1))
    burst[place : place + 2] = reversed(burst[place : place + 2])
    return burst


def break_(engine: EmbeddedEngine) -> None:
    rewriting(NAME, swap, engine)
