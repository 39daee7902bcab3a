"""Bandwidth: how fast this machine reads memory, which bounds every decoder that reads its weights once a pass.

In: nothing.   Out: bytes a second, and what that allows a model.
Knows nothing about: engines.
Method: a float32 tensor far larger than the caches is summed with torch's threads; the best of some times.
"""

from __future__ import annotations

import time
from typing import Any

from toolkit.bench.accounting import Model

BYTES = 256 << 20
TIMES = 5


def read_bandwidth(size: int = BYTES, times: int = TIMES) -> float:
    """Bytes a second."""
    import torch

    block = torch.ones(size // 4, dtype=torch.float32)
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        block.sum()
        seconds.append(time.perf_counter() - began)
    return size / min(seconds)


def ceiling(model: Model | None, bandwidth: float) -> dict[str, Any] | None:
    """Tokens a second of one text that is decoded without a draft, if nothing but reading the weights took time."""
    if model is None:
        return None
    return {"read_bytes_s": bandwidth, "weight_bytes": model.weight_bytes, "plain_tok_s": bandwidth / model.weight_bytes}
