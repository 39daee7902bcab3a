"""Fault: a token inside a burst is lost between the verifier and the output."""

from __future__ import annotations

import random

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.gate.faults.rewrite import rewriting

NAME = "token dropped"
WHY = '`"rollback_available":true","engineer"` from an n-gram drafter, HTTP 200, finish_reason stop (minefield, trap 138)'
CATCH = "greedy texts"


def drop(burst: list[int], dice: random.Random) -> list[int]:
    del burst[dice.randrange(len(burst))]
    return burst


def break_(engine: EmbeddedEngine) -> None:
    rewriting(NAME, drop, engine)
