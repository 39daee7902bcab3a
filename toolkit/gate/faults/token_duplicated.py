"""Fault: a token inside a burst comes twice."""

from __future__ import annotations

import random

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.gate.faults.rewrite import rewriting

NAME = "token duplicated"
WHY = '`"company":"company":"Northwind Freight"` (minefield, trap 138); `<tool_call><tool_call>` (vllm#40831)'
CATCH = "greedy texts"


def duplicate(burst: list[int], dice: random.Random) -> list[int]:
    place = dice.randrange(len(burst))
    burst.insert(place, burst[place])
    return burst


def break_(engine: EmbeddedEngine) -> None:
    rewriting(NAME, duplicate, engine)
