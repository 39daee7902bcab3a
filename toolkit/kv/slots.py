"""SlotView: the cache slots that every row of one pass reads and writes, as flat arrays for kernels that follow lists.

    slots   [ all of sequence a ][ all of sequence b ] ...
    row t   sees slots[first[t] : first[t] + seen[t] - 1] and own[t], the slot that it writes

Rows of one sequence share its list and see more of it one by one; sequences that share blocks list the same slots. Nodes of
a draft tree share the list of the tree's longest path where their ancestors lie on it; others have a list of their own: what comes before
the tree, their ancestors, themselves.
In: a KVStore and the spans of a pass, whose tables already have room for the new rows.
Knows nothing about: what attends, and how.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from toolkit.kv.store import KVStore
from toolkit.kv.view import Span


class SlotView:
    """own, first, seen [T] int64, slots int32 and the longest list, with the tensors of the store that they point into; to be used before tables change."""

    def __init__(self, store: KVStore, spans: Sequence[Span]) -> None:
        self.keys, self.values = store.keys, store.values
        if len(spans) == 1 and not spans[0].paths:
            length, count = spans[0].table.length, spans[0].count
            self.slots: NDArray[np.int32] = spans[0].table.listed()
            self.first: NDArray[np.int64] = np.zeros(count, np.int64)
            self.seen: NDArray[np.int64] = np.arange(length - count + 1, length + 1)
            self.own: NDArray[np.int64] = self.slots[length - count :].astype(np.int64)
            self.longest = length
            return
        lists: list[NDArray[np.int32]] = []
        first: list[int] = []
        seen: list[int] = []
        own: list[NDArray[np.int32]] = []
        at = 0
        for span in spans:
            mine = span.table.listed()
            before = len(mine) - len(span.paths)  # what every node sees
            new = mine[before:]
            spine = max(span.paths, key=len, default=())  # the longest path, on which others end in slots of their own
            shared = mine if spine == tuple(range(len(spine))) else np.concatenate((mine[:before], new[list(spine)]))
            lists.append(shared)
            own.append(mine[len(mine) - span.count :])
            first += [at] * span.trunk
            seen += range(before - span.trunk + 1, before + 1)
            main, at = at, at + len(shared)
            for path in span.paths:
                seen.append(before + len(path))
                if path[:-1] == spine[: len(path) - 1]:
                    first.append(main)
                    continue
                lists.append(np.concatenate((mine[:before], new[list(path)])))
                first.append(at)
                at += before + len(path)
        self.slots = np.concatenate(lists) if lists else np.empty(0, np.int32)
        self.first, self.seen = np.array(first, np.int64), np.array(seen, np.int64)
        self.own = np.concatenate(own).astype(np.int64) if own else np.empty(0, np.int64)
        self.longest = max(seen, default=0)
