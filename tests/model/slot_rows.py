"""The smallest SlotRows: one sequence whose tokens lie in cache slots of any order."""

from __future__ import annotations

import numpy as np
import torch

from toolkit.model.config import ModelConfig


class SlotLine:
    """A sequence over `order`, the slot of each of its tokens; `grow(n)` gives room for n more and shows the new rows."""

    def __init__(self, config: ModelConfig, order: list[int]) -> None:
        shape = (config.layers, config.kv_heads, len(order), config.head_dim)
        self.keys, self.values = torch.full(shape, torch.nan), torch.full(shape, torch.nan)
        self.order, self.length = np.array(order, np.int32), 0

    def grow(self, count: int) -> SlotLine:
        self.length += count
        self.slots = self.order[: self.length]
        self.seen = np.arange(self.length - count, self.length, dtype=np.int64) + 1
        self.first = np.zeros(count, np.int64)
        self.own = self.slots[self.seen - 1].astype(np.int64)
        self.longest = self.length
        return self
