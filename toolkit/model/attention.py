"""KVView: the one seam between a decoder and a key-value cache, and its slow twin FullAttention.

In: queries q [T, H, Dh], keys and values k, v [T, Hkv, Dh], q and k already rotated.   Out: [T, H, Dh].
Knows nothing about: blocks, sequences, schedulers. A view knows which of the T rows belong to which sequence.
Invariants: row t attends to the rows of its own sequence at positions <= its own, and to nothing else; head h reads
key-value head h // (H / Hkv).
Source: causal softmax attention (1706.03762, section 3.2.1), grouped heads (2305.13245).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class KVView(Protocol):
    """Writes a layer's new keys and values where they belong, then attends causally."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[T, H, Dh] of q [T, H, Dh] over the cached rows and k, v [T, Hkv, Dh] of this pass."""


class FullAttention:
    """No cache: the T rows are one whole sequence from position 0. The obvious twin that fast views are tested against."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal softmax over the rows of this pass alone; scores and weights in float32."""
        rows, heads, width = q.shape
        k = k.repeat_interleave(heads // k.shape[1], dim=1)  # [T, H, Dh]
        v = v.repeat_interleave(heads // v.shape[1], dim=1)
        scores = torch.einsum("thd,shd->hts", q.float(), k.float()) / width**0.5  # [H, T, T]
        later = torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return torch.einsum("hts,shd->thd", weights, v.float()).to(q.dtype)
