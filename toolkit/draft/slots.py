"""RowLists: the cache slots that every row of one pass writes and sees, each row with a list of its own.

For the layer of a head, whose drafted rows see the committed ones, their ancestors and themselves, in no order of their own.
In: the cache's tensors and lists of slots.   Out: what the native decoder reads, and `attend` for the torch decoder.
Knows nothing about: sequences, block tables, why a row sees what it sees.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from toolkit.kv.blocks import BlockPool
from toolkit.kv.store import KVStore
from toolkit.kv.table import BlockTable

Slots = NDArray[np.int32]


class SlotLine:
    """The slots of one sequence in order: `slots[:end]` are places that were computed, behind them is room for guesses.

    The array only grows, and the table holds whole blocks: to guess costs neither of them a step.
    """

    def __init__(self, pool: BlockPool, block: int) -> None:
        self._table, self._block = BlockTable(pool, block), block
        self.slots: Slots = np.empty(0, np.int32)
        self.end = 0

    def reach(self, count: int) -> None:
        """Have room for `count` slots behind the end. EngineError where the pool has no block left."""
        before = self._table.length
        if self.end + count <= before:
            return
        after = -(-(self.end + count) // self._block) * self._block
        self._table.append(after - before)
        if after > len(self.slots):
            self.slots = np.concatenate((self.slots[:before], np.empty(2 * after - before, np.int32)))
        self.slots[before:after] = self._table.slots(before, after)

    def rows(self, store: KVStore, count: int) -> RowLists:
        """The last `count` places as new rows."""
        return RowLists.line(store, self.slots[: self.end], count)

    def release(self) -> None:
        """Give every block back."""
        self._table.release()
        self.slots, self.end = np.empty(0, np.int32), 0


class RowLists:
    """Row t sees slots[first[t] : first[t] + seen[t]], its own last."""

    def __init__(self, store: KVStore, slots: Slots, first: NDArray[np.int64], seen: NDArray[np.int64]) -> None:
        self.keys, self.values = store.keys, store.values
        self.slots, self.first, self.seen = slots, first, seen
        self.own: NDArray[np.int64] = slots[first + seen - 1].astype(np.int64)
        self.longest = int(seen.max(initial=0))
        self._store = store

    @classmethod
    def line(cls, store: KVStore, slots: Slots, count: int) -> RowLists:
        """The last `count` slots of one line are new rows, each of which sees all before it."""
        seen = np.arange(len(slots) - count, len(slots), dtype=np.int64) + 1
        return cls(store, slots, np.zeros(count, np.int64), seen)

    @classmethod
    def nodes(cls, store: KVStore, trunk: Slots, paths: Sequence[Sequence[int]]) -> RowLists:
        """Every row sees the trunk and its own path of slots, itself last."""
        lists = [np.concatenate((trunk, np.array(path, np.int32))) for path in paths]
        seen = np.array([len(each) for each in lists], np.int64)
        return cls(store, np.concatenate(lists), np.cumsum(seen) - seen, seen)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """For the torch decoder, q [T, H, Dh], k, v [T, Hkv, Dh]: row by row, plain and slow."""
        own = torch.from_numpy(self.own).to(k.device)
        self._store.write(layer, own, k, v)
        out = torch.empty_like(q)
        for row, (first, seen) in enumerate(zip(self.first.tolist(), self.seen.tolist(), strict=True)):
            at = torch.from_numpy(self.slots[first : first + seen].astype(np.int64)).to(k.device)
            keys, values = self._store.gather(self.keys[layer], at), self._store.gather(self.values[layer], at)
            out[row] = F.scaled_dot_product_attention(q[row, :, None][None], keys[None], values[None], enable_gqa=True)[0, :, 0]
        return out
