"""BlockTable: the blocks of one sequence, in order. Fork shares them, the first write into a shared one copies it.

    tokens   0 ............ length
    blocks   [full][full][part]        only the last block may be partly filled

Ownership: every entry is one hold on the pool. A block with several holders is never written; all of its slots are
filled for every holder, except the last block of tables that were forked and have not grown since.
Laws: a fork never writes into its parent; append then truncate is the identity on (blocks kept, length).
Knows nothing about: tensors. Copies are returned for the store to carry out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import EngineError
from toolkit.kv.blocks import BlockPool


class BlockCopy(NamedTuple):
    """Copy the first `used` slots of block `source`, which are all that the table has in it, to block `target`, in every layer, before anything is written."""

    source: int
    target: int
    used: int


class BlockTable:
    """Blocks and length of one sequence's cache; `block_size` tokens a block."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size
        self.blocks: list[int] = []
        self.length = 0
        self._listed = np.empty(0, np.int32)  # slots of the first `_known` blocks
        self._known = 0

    def adopt(self, blocks: Sequence[int]) -> None:
        """Start with full blocks that the caller already holds for this table (a prefix found in the cache)."""
        if self.blocks:
            raise EngineError("a block table adopts a prefix only while it is empty")
        self.extend(blocks)

    def extend(self, blocks: Sequence[int]) -> None:
        """Go on with full blocks that the caller already holds for this table, whose last block has to be full."""
        if self.length % self.block_size:
            raise EngineError(f"a table of {self.length} tokens in blocks of {self.block_size} cannot go on with full blocks")
        self.blocks += blocks
        self.length += len(blocks) * self.block_size

    def needs(self, count: int) -> int:
        """Blocks that `append(count)` would take from the pool."""
        after = -(-(self.length + count) // self.block_size) - len(self.blocks)
        return after + int(self._copies_on_write() and count > 0)

    def append(self, count: int) -> list[BlockCopy]:
        """Make room for `count` more tokens; returns the copies to carry out first (at most one)."""
        copies: list[BlockCopy] = []
        if count and self._copies_on_write():
            source, target = self.blocks[-1], self.pool.take()
            self.pool.release(source)
            self.blocks[-1] = target
            self._known = min(self._known, len(self.blocks) - 1)
            copies.append(BlockCopy(source, target, self.length % self.block_size))
        self.length += count
        while len(self.blocks) * self.block_size < self.length:
            self.blocks.append(self.pool.take())
        return copies

    def truncate(self, length: int) -> None:
        """Forget everything from token `length` on."""
        if not 0 <= length <= self.length:
            raise EngineError(f"cannot truncate a table of {self.length} tokens to {length}")
        self.length = length
        while (len(self.blocks) - 1) * self.block_size >= length and self.blocks:
            self.pool.release(self.blocks.pop())
        self._known = min(self._known, len(self.blocks))

    def fork(self) -> BlockTable:
        """A table over the same blocks; no slot is copied until one of the two grows."""
        twin = BlockTable(self.pool, self.block_size)
        twin.blocks, twin.length = list(self.blocks), self.length
        twin._listed, twin._known = self._listed[: self._known * self.block_size].copy(), self._known
        for block in self.blocks:
            self.pool.share(block)
        return twin

    def release(self) -> None:
        """Give every block back; the table is empty afterwards, releasing twice is harmless."""
        self.truncate(0)

    def slots(self, start: int, stop: int) -> list[int]:
        """Cache slots of tokens start .. stop-1."""
        size = self.block_size
        return [self.blocks[i // size] * size + i % size for i in range(start, stop)]

    def listed(self) -> NDArray[np.int32]:
        """`slots(0, length)` as an array, to be used before the table changes: only what is new since the last call is computed."""
        size, count = self.block_size, len(self.blocks)
        if self._known < count:
            if len(self._listed) < count * size:
                self._listed = np.concatenate(
                    (self._listed[: self._known * size], np.empty((2 * count - self._known) * size, np.int32))
                )
            new = np.array(self.blocks[self._known :], np.int32)[:, None] * np.int32(size) + np.arange(size, dtype=np.int32)
            self._listed[self._known * size : count * size] = new.reshape(-1)
            self._known = count
        return self._listed[: self.length]

    def check(self) -> None:
        """Raise EngineError unless blocks, length and holds agree."""
        if len(self.blocks) != -(-self.length // self.block_size):
            raise EngineError(f"{len(self.blocks)} blocks of {self.block_size} cannot be the table of {self.length} tokens")
        if any(self.pool.holders(block) < 1 for block in self.blocks):
            raise EngineError(f"table {self.blocks} holds a block that the pool says is free")

    def _copies_on_write(self) -> bool:
        return self.length % self.block_size != 0 and self.pool.holders(self.blocks[-1]) > 1
