"""Calibrate: what a pass with M rows costs on this machine, measured once when an engine with a drafter opens.

Knows nothing about: drafters. Afterwards passes in use correct the figures (scheduler).
"""

from __future__ import annotations

import time

from toolkit.engine.forward import Feed, Forward
from toolkit.engine.pass_costs import PassCosts
from toolkit.engine.sequence import Sequence

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_BEFORE = 64  # tokens in the cache before the measured rows
_TIMES = 3


def calibrate(forward: Forward, *, batch_rows: int) -> PassCosts:
    """Seconds of passes over 1 to 64 rows of one sequence, the least of three each. Takes about a second on a small model."""
    costs = PassCosts()
    room = min(forward.pool.size * forward.block_size, forward.decoder.config.context)
    before = min(_BEFORE, room // 2)
    sequence = Sequence([0] * before, forward.table(), None, forward.store.move)
    try:
        forward([Feed(sequence, before, 1)])
        for rows in ROWS:
            if rows <= min(batch_rows, room - before):
                costs.learn(rows, min(_one(forward, sequence, rows) for _ in range(_TIMES)))
    finally:
        sequence.release()
    return costs


def _one(forward: Forward, sequence: Sequence, rows: int) -> float:
    sequence.advance([0] * rows)
    began = time.perf_counter()
    forward([Feed(sequence, rows, rows)])
    seconds = time.perf_counter() - began
    sequence.rollback(rows)
    return seconds
