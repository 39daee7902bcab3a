"""Calibrate: what a pass with M rows costs on this machine, measured once when an engine with a drafter opens.

Knows nothing about: drafters. Afterwards passes in use correct the figures (scheduler).
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Many

from toolkit.engine.forward import Feed, Forward
from toolkit.engine.pass_costs import PassCosts
from toolkit.engine.sequence import Sequence

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_FEW, _MANY = 1, 8  # rows of the passes that tell what attention takes
_BEFORE, _FAR = 64, 512  # tokens in the cache before the measured rows
_TIMES = 3
_PIECE = 64  # tokens that are computed in one pass beforehand


def calibrate(forward: Forward, *, batch_rows: int) -> PassCosts:
    """Seconds of passes over 1 to 64 rows of one sequence, the least of three each. Takes about a second on a small model."""
    room = min(forward.pool.size * forward.block_size, forward.decoder.config.context)
    before = min(_BEFORE, room // 2)
    near = _measured(forward, before, [rows for rows in ROWS if rows <= min(batch_rows, room - before)])
    costs = PassCosts()
    if _MANY in near and room >= _FAR + _MANY:
        far = _measured(forward, _FAR, (_FEW, _MANY))
        costs = PassCosts(*attention(*(((far[rows] - near[rows]) / (_FAR - before)) for rows in (_FEW, _MANY))))
    for rows, seconds in near.items():
        costs.learn(rows, seconds, listed=before + rows, seen=rows * (before + rows))
    return costs


def attention(few: float, many: float) -> tuple[float, float]:
    """(list_s, slot_s) of PassCosts, from what one more token in the cache costs passes of 1 and of 8 rows; neither below 0."""
    slot_s = max(0.0, (many - few) / (_MANY - _FEW))
    return max(0.0, few - _FEW * slot_s), slot_s


def _measured(forward: Forward, before: int, sizes: Many[int]) -> dict[int, float]:
    """Seconds of passes over so many rows behind `before` tokens."""
    sequence = Sequence([0] * before, forward.table(), None, forward.store.move)
    try:
        while sequence.pending:
            forward([Feed(sequence, min(sequence.pending, _PIECE), 1)])
        return {rows: min(_one(forward, sequence, rows) for _ in range(_TIMES)) for rows in sizes}
    finally:
        sequence.release()


def _one(forward: Forward, sequence: Sequence, rows: int) -> float:
    sequence.advance([0] * rows)
    began = time.perf_counter()
    forward([Feed(sequence, rows, rows)])
    seconds = time.perf_counter() - began
    sequence.rollback(rows)
    return seconds
