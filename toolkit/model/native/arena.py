"""Arena: memory for packed weights in huge pages, where the system gives them.

In: byte counts.   Out: zeroed int8 tensors that start on a cache line.
Knows nothing about: what lies in them. A pass reads all weights once, so with small pages it waits for the page tables: on
the machine where this was written, one row took 30 % longer.
Invariants: a region lives as long as any tensor in it; a system without huge pages gives ordinary ones.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch
from torch import Tensor

_LINE = 64
_HUGE = 1 << 21
_REGION = 32 * _HUGE  # address space taken at once; only pages that are written cost memory


class Arena:
    """Hands out memory piece by piece; nothing is given back before all of it."""

    def __init__(self) -> None:
        self._region = torch.empty(0, dtype=torch.int8)
        self._used = 0

    def take(self, count: int) -> Tensor:
        """[count] int8 zeros."""
        if self._used + count > len(self._region):
            self._region, self._used = _region(max(count, _REGION)), 0
        piece = self._region[self._used : self._used + count]
        self._used += -(-count // _LINE) * _LINE
        return piece


def _region(count: int) -> Tensor:
    """At least `count` zeroed bytes from a huge page's border on."""
    memory = mmap.mmap(-1, count + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.int8)
    return whole[-whole.data_ptr() % _HUGE :]
