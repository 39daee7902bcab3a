"""Best: the likeliest allowed tokens of rows of logits, and their log-probabilities, read once where they lie.

In: rows [V] float32 on the CPU, a mask of bits or none.   Out: per row (token, log-probability, log-probability among the allowed).
Knows nothing about: beams, grammars. The same in torch, slower: toolkit/sample/beam.py.
Invariants: a row's result depends on that row and its mask alone, bit for bit, for any number of threads and every kernel set;
of equal tokens the lower id comes first.
Source: best.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_void_p
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from toolkit.contracts import Mask
from toolkit.errors import EngineError
from toolkit.model.native.library import library

Likeliest = list[tuple[int, float, float]]


def best(rows: Sequence[Tensor], mask: Mask | None, count: int, kernels: int, threads: int | None = None) -> list[Likeliest]:
    """The `count` likeliest tokens of every row [V] that its line of the mask [R, ceil(V / 32)] allows; fewer where fewer are.

    EngineError for rows that are not finite, and for shapes that do not fit.
    """
    if not rows:
        return []
    width = len(rows[0])
    for row in rows:
        if (
            row.dtype != torch.float32
            or row.shape != (width,)
            or row.device.type != "cpu"
            or (width > 1 and row.stride() != (1,))
        ):
            raise EngineError(f"a row {list(row.shape)} {row.dtype} must be {width} contiguous float32 on the CPU")
    if mask is not None:
        mask = np.ascontiguousarray(mask)
        if mask.shape != (len(rows), -(-width // 32)) or mask.dtype != np.int32:
            raise EngineError(f"a mask {list(mask.shape)} {mask.dtype} must be int32 [{len(rows)}, {-(-width // 32)}]")
    count = min(count, width)
    norms, found = np.empty((len(rows), 2), np.float32), np.empty(len(rows), np.int64)
    ids, values = np.empty((len(rows), count), np.int32), np.empty((len(rows), count), np.float32)
    library().native_best(
        kernels, (c_void_p * len(rows))(*(row.data_ptr() for row in rows)), len(rows), width,
        None if mask is None else mask.ctypes.data, count, threads or min(len(rows), torch.get_num_threads()),
        *(array.ctypes.data for array in (norms, found, ids, values)),
    )  # fmt: skip
    lines = zip(norms.tolist(), found.tolist(), ids.tolist(), values.tolist(), strict=True)
    return [_likeliest(*line) for line in lines]


def _likeliest(norms: Sequence[float], found: int, ids: Sequence[int], values: Sequence[float]) -> Likeliest:
    norm, legal = norms
    if not isfinite(norm):
        raise EngineError("the model's logits are not finite", hint="check its weights and dtype")
    pairs = zip(ids[:found], values[:found], strict=True)
    return [(token, min(value - norm, 0.0), min(value - legal, 0.0)) for token, value in pairs]
