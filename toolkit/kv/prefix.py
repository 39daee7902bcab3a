"""PrefixCache: full blocks of earlier sequences, found again by the tokens that led to them.

A block's key is (key of the block before it, its own tokens), so a hit means the whole prefix is the same - compared as
tokens, not as a hash that could collide. The cache is one more holder of its blocks; what only it holds can be evicted,
least recently used leaves first.
Knows nothing about: tensors, requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.kv.blocks import BlockPool


@dataclass(slots=True)
class _Entry:
    block: int
    parent: int  # entry number, -1 = root
    key: tuple[int, tuple[int, ...]]
    children: set[int]


class PrefixCache:
    """Maps token prefixes to held blocks; `match` hands out shared holds, `insert` remembers, `evict` gives back."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size
        self._by_key: dict[tuple[int, tuple[int, ...]], int] = {}
        self._entries: OrderedDict[int, _Entry] = OrderedDict()  # oldest use first
        self._next = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def evictable(self) -> int:
        """Blocks that nobody but the cache holds."""
        return sum(self.pool.holders(entry.block) == 1 for entry in self._entries.values())

    def match(self, tokens: Sequence[int]) -> list[int]:
        """Blocks of the longest cached prefix, shared for the caller. The last token is never covered: its logits are needed."""
        blocks: list[int] = []
        for number in self._walk(tokens, (len(tokens) - 1) // self.block_size):
            self._entries.move_to_end(number)
            blocks.append(self._entries[number].block)
            self.pool.share(blocks[-1])
        return blocks

    def insert(self, tokens: Sequence[int], blocks: Sequence[int]) -> None:
        """Remember the full blocks that hold `tokens`; what is known already keeps its block."""
        parent = -1
        for i in range(len(tokens) // self.block_size):
            key = (parent, tuple(tokens[i * self.block_size : (i + 1) * self.block_size]))
            number = self._by_key.get(key)
            if number is None:
                number, self._next = self._next, self._next + 1
                self._by_key[key] = number
                self._entries[number] = _Entry(blocks[i], parent, key, set())
                self.pool.share(blocks[i])
                if parent >= 0:
                    self._entries[parent].children.add(number)
            self._entries.move_to_end(number)
            parent = number

    def evict(self, count: int) -> int:
        """Free up to `count` blocks that only the cache holds; returns how many were freed."""
        freed = 0
        while freed < count:
            idle = [number for number, entry in self._entries.items() if self.pool.holders(entry.block) == 1]
            if not idle:
                break
            leaves = [number for number in idle if not self._entries[number].children]
            for number in leaves[: count - freed] or idle[:1]:
                freed += self._forget(number)
        return freed

    def clear(self) -> None:
        """Let go of every block."""
        for entry in self._entries.values():
            self.pool.release(entry.block)
        self._entries.clear()
        self._by_key.clear()

    def _forget(self, number: int) -> int:
        """Drop an entry and all that follows it (unreachable without it); returns the blocks that became free."""
        entry = self._entries.pop(number)
        del self._by_key[entry.key]
        if entry.parent in self._entries:
            self._entries[entry.parent].children.discard(number)
        freed = sum(self._forget(child) for child in list(entry.children))
        freed += self.pool.holders(entry.block) == 1
        self.pool.release(entry.block)
        return freed

    def _walk(self, tokens: Sequence[int], limit: int) -> list[int]:
        found: list[int] = []
        parent = -1
        for i in range(limit):
            number = self._by_key.get((parent, tuple(tokens[i * self.block_size : (i + 1) * self.block_size])))
            if number is None:
                break
            found.append(number)
            parent = number
        return found
