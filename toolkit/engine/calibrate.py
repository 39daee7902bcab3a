"""Calibrate: what a pass with M rows costs on this machine, measured once when an engine with a drafter opens.

Knows nothing about: drafters. Afterwards passes in use correct what rows cost, and what attention costs where it was said to be too much (scheduler).
"""

from __future__ import annotations

import time
from contextlib import ExitStack

import torch

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
    before, most = min(_BEFORE, room // 2), min(batch_rows, room - min(_BEFORE, room // 2))
    costs = PassCosts()
    with torch.inference_mode(), ExitStack() as ends:
        near = _line(forward, before, ends)
        if most >= _MANY and min(forward.pool.free * forward.block_size, room) >= _FAR + 2 * _MANY:
            far = _line(forward, _FAR, ends)
            lines = [(line, rows) for line in (near, far) for rows in (_FEW, _MANY)]
            taken = [
                [_one(forward, *each) for each in lines] for _ in range(_TIMES)
            ]  # in turn, since machines do not stay as they are
            near_few, near_many, far_few, far_many = map(min, zip(*taken, strict=True))
            costs = PassCosts(*attention((far_few - near_few) / (_FAR - before), (far_many - near_many) / (_FAR - before)))
        for rows in ROWS:
            if rows <= most:
                seconds = min(_one(forward, near, rows) for _ in range(_TIMES))
                costs.learn(rows, seconds, listed=before + rows, seen=rows * (before + rows))
    return costs


def attention(few: float, many: float) -> tuple[float, float]:
    """(list_s, slot_s) of PassCosts, from what one more token in the cache costs passes of 1 and of 8 rows; neither below 0."""
    slot_s = max(0.0, (many - few) / (_MANY - _FEW))
    return max(0.0, few - _FEW * slot_s), slot_s


def _line(forward: Forward, length: int, ends: ExitStack) -> Sequence:
    """A sequence of so many tokens in the cache, until the end."""
    sequence = Sequence([0] * length, forward.table(), None, forward.store.move)
    ends.callback(sequence.release)
    while sequence.pending:
        forward([Feed(sequence, min(sequence.pending, _PIECE), 1)])
    return sequence


def _one(forward: Forward, sequence: Sequence, rows: int) -> float:
    sequence.advance([0] * rows)
    began = time.perf_counter()
    forward([Feed(sequence, rows, rows)])
    seconds = time.perf_counter() - began
    sequence.rollback(rows)
    return seconds
