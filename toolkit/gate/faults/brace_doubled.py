"""Fault: a bracket or a quote of a burst comes twice."""

from __future__ import annotations

import random

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.gate.faults.rewrite import rewriting

NAME = "brace doubled"
WHY = "doubled `{{` with thinking, a JSON schema and MTP: the grammar was one token behind (vllm#48228)"
CATCH = "greedy texts"
_MARKS = frozenset(b'{}[]"')


def double(burst: list[int], dice: random.Random) -> list[int]:
    places = [place for place, token in enumerate(burst) if token in _MARKS]
    if places:
        place = dice.choice(places)
        burst.insert(place, burst[place])
    return burst


def break_(engine: EmbeddedEngine) -> None:
    rewriting(NAME, double, engine)
