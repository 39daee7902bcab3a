"""Bandwidth: how fast this machine reads as many bytes as a model's weights, which bounds every decoder that reads them once a pass.

In: a number of bytes.   Out: bytes a second, and what that allows a model.
Knows nothing about: engines.
Method: a block of that size is read again and again, as a pass does (part of it may stay in the last cache), summed as floats by torch and, where the
native library is built, as weights of one row's product; the best of some times and of both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from toolkit.bench.accounting import Model

BYTES = 256 << 20
LEAST, MOST = 16 << 20, 1 << 30  # of a block, whatever a model has
TIMES = 5
_INPUTS = 1024  # of the product's matrix


def read_bandwidth(size: float = BYTES, times: int = TIMES) -> float:
    """Bytes a second, of a block of about `size` bytes."""
    size = int(min(max(size, LEAST), MOST))
    found = []
    for prepare in (_sum, _product):
        read, count = prepare(size)
        seconds = []
        for _ in range(times if count else 0):
            began = time.perf_counter()
            read()
            seconds.append(time.perf_counter() - began)
        found += [count / min(seconds)] if seconds else []
    return max(found)


def _sum(size: int) -> tuple[Callable[[], object], int]:
    """A reader, and how many bytes it reads."""
    import torch

    block = torch.ones(size // 4, dtype=torch.float32)
    return block.sum, 4 * len(block)


def _product(size: int) -> tuple[Callable[[], object], int]:
    """Likewise; it reads nothing where there is no native library."""
    import torch

    from toolkit.model.native.arena import Arena
    from toolkit.model.native.decoder import linear
    from toolkit.model.native.library import TILE, kernel_index, missing
    from toolkit.model.native.pack import Packed, tiles_shape

    if missing() is not None:
        return lambda: None, 0
    outputs = size // _INPUTS // TILE * TILE
    tiles = Arena().take(outputs * _INPUTS).view(tiles_shape(outputs, _INPUTS, 8))
    tiles.fill_(1)
    weights, row, kernels = (
        Packed(tiles, torch.ones(outputs), None, outputs, _INPUTS),
        torch.ones(1, _INPUTS),
        kernel_index(None),
    )
    return lambda: linear(weights, row, kernels), outputs * _INPUTS


def ceiling(model: Model | None, bandwidth: float) -> dict[str, Any] | None:
    """Tokens a second of one text that is decoded without a draft, if nothing but reading the weights took time."""
    if model is None:
        return None
    return {"read_bytes_s": bandwidth, "weight_bytes": model.weight_bytes, "plain_tok_s": bandwidth / model.weight_bytes}
