"""BlockPool: which KV blocks are free, and how many holders each of the others has. Plain ints, no tensors.

In: requests to take, share and release blocks.   Out: block numbers 0 .. size-1.
Knows nothing about: tokens, tensors, sequences.
Invariants: a block is free exactly when it has no holder; `check()` proves the books balance.
"""

from __future__ import annotations

import heapq

from toolkit.errors import EngineError


class BlockPool:
    """`size` blocks with reference counts. Lowest free number first, so that what is written together lies together."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.peak = 0  # most blocks ever held at once
        self._holders = [0] * size
        self._free = list(range(size))  # a heap

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def in_use(self) -> int:
        return self.size - len(self._free)

    def take(self) -> int:
        """A free block, now with one holder. EngineError when none is left: admission must have prevented that."""
        if not self._free:
            raise EngineError(
                f"all {self.size} KV blocks are in use", hint="raise kv_blocks or lower the number of requests in flight"
            )
        block = heapq.heappop(self._free)
        self._holders[block] = 1
        self.peak = max(self.peak, self.in_use)
        return block

    def share(self, block: int) -> None:
        """One more holder of a block that is held already."""
        if self._holders[block] < 1:
            raise EngineError(f"KV block {block} is free and cannot be shared")
        self._holders[block] += 1

    def release(self, block: int) -> None:
        """One holder less; the last one frees the block."""
        if self._holders[block] < 1:
            raise EngineError(f"KV block {block} is free and cannot be released")
        self._holders[block] -= 1
        if self._holders[block] == 0:
            heapq.heappush(self._free, block)

    def holders(self, block: int) -> int:
        return self._holders[block]

    def check(self) -> None:
        """Raise EngineError unless the free list is exactly the set of blocks without a holder."""
        unheld = {block for block, holders in enumerate(self._holders) if holders == 0}
        if len(self._free) != len(unheld) or set(self._free) != unheld:
            raise EngineError(
                f"KV free list {sorted(self._free)[:8]}... disagrees with the unheld blocks {sorted(unheld)[:8]}..."
            )
