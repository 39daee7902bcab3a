"""SlotView: the cache slots that every row of one pass reads and writes, as flat arrays for kernels that follow lists.

    slots   [ all of sequence a ][ all of sequence b ] ...
    row t   sees slots[first[t] : first[t] + seen[t]], the last of which is its own

Rows of one sequence share its list and see more of it one by one; sequences that share blocks list the same slots. A node of
a draft tree has a list of its own: what comes before the tree, its ancestors, itself.
In: a KVStore and the spans of a pass, whose tables already have room for the new rows.
Knows nothing about: what attends, and how.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from toolkit.kv.store import KVStore
from toolkit.kv.table import BlockTable
from toolkit.kv.view import Span


class SlotView:
    """own, first, seen [T] int64 and slots int32, with the tensors of the store that they point into."""

    def __init__(self, store: KVStore, spans: Sequence[Span]) -> None:
        self.keys, self.values = store.keys, store.values
        lists: list[NDArray[np.int32]] = []
        first: list[int] = []
        seen: list[int] = []
        at = 0
        for span in spans:
            mine = _slots(span.table)
            before = len(mine) - len(span.paths)  # what every node sees
            first += [at] * span.trunk
            seen += range(before - span.trunk + 1, before + 1)
            lists.append(mine)
            at += len(mine)
            for path in span.paths:
                lists.append(np.concatenate((mine[:before], mine[before:][list(path)])))
                first.append(at)
                seen.append(before + len(path))
                at += before + len(path)
        self.slots = np.concatenate(lists) if lists else np.empty(0, np.int32)
        self.first: NDArray[np.int64] = np.array(first, dtype=np.int64)
        self.seen: NDArray[np.int64] = np.array(seen, dtype=np.int64)
        self.own: NDArray[np.int64] = self.slots[self.first + self.seen - 1].astype(np.int64)


def _slots(table: BlockTable) -> NDArray[np.int32]:
    """Slots of tokens 0 .. length-1 of a table."""
    inside: NDArray[np.int32] = np.arange(table.block_size, dtype=np.int32)
    firsts: NDArray[np.int32] = np.array(table.blocks, dtype=np.int32) * np.int32(table.block_size)
    return np.add.outer(firsts, inside).reshape(-1)[: table.length]
