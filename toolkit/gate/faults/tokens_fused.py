"""Fault: two tokens of a burst become one other token."""

from __future__ import annotations

import random

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.gate.faults.rewrite import rewriting

NAME = "tokens fused"
WHY = '`{"command=ls":""}`, name `runshell command="ls"` from an n-gram drafter (vllm#56077); `parameter=parameter=name` (vllm#40875)'
CATCH = "greedy texts"


def fuse(burst: list[int], dice: random.Random) -> list[int]:
    if len(burst) > 1:
        place = dice.randrange(len(burst) - 1)
        burst[place : place + 2] = [33 + (burst[place] * 31 + burst[place + 1]) % 94]  # some printable byte
    return burst


def break_(engine: EmbeddedEngine) -> None:
    rewriting(NAME, fuse, engine)
