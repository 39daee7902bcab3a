"""Mask: sets of tokens as bits.

In / Out: int32 [B, ceil(V/32)], bit `id % 32` of word `id // 32` is token `id`, 1 = allowed.
Knows nothing about: grammars, torch.
Invariants: bits at and above V are 0 in what `allocate` gives and are never read by `unpack`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from toolkit.contracts import Mask


def allocate(rows: int, vocab_size: int) -> Mask:
    """A mask [rows, ceil(V/32)] that allows nothing."""
    return np.zeros((rows, -(-vocab_size // 32)), dtype=np.int32)


def unpack(mask: Mask, vocab_size: int) -> npt.NDArray[np.bool_]:
    """The mask as booleans [B, V]."""
    flat = np.unpackbits(np.ascontiguousarray(mask).astype("<i4", copy=False).view(np.uint8), axis=1, bitorder="little")
    return flat[:, :vocab_size].view(np.bool_)


def pack(ids: npt.ArrayLike, vocab_size: int) -> npt.NDArray[np.int32]:
    """One row [ceil(V/32)] that allows exactly `ids`."""
    flat = np.zeros(-(-vocab_size // 32) * 32, dtype=np.uint8)
    flat[np.asarray(ids, dtype=np.int64)] = 1
    return np.packbits(flat, bitorder="little").view("<i4").astype(np.int32, copy=False)
