"""Scratch: memory that native calls work in, kept from one call to the next.

    with scratch(count) as address: ...

In: a number of bytes.   Out: the address of so many, on a cache line, the caller's until the block ends; what they hold is not defined.
Knows nothing about: what is computed.
Invariants: no two callers have the same memory at once (several threads may call); what lies idle is little: about MOST pieces of at most LARGEST bytes.
Why: fresh memory is fresh pages, which the system fills with zeros one by one, between the passes of a model.
"""

from __future__ import annotations

import torch

LARGEST = 1 << 24
MOST = 4
_LINE = 64  # bytes of a cache line
_idle: list[tuple[torch.Tensor, int, int]] = []  # memory, its first cache line, bytes from there


class scratch:  # noqa: N801 - a context manager, used like a function
    """`count` bytes for the time of a block."""

    __slots__ = ("_count", "_held")

    def __init__(self, count: int) -> None:
        self._count = count

    def __enter__(self) -> int:
        try:
            self._held = _idle.pop()
        except IndexError:
            self._held = _fresh(self._count)
        if self._held[2] < self._count:
            if self._count > LARGEST:
                _idle.append(self._held)  # what replaces it will not be kept
            self._held = _fresh(self._count)
        return self._held[1]

    def __exit__(self, *error: object) -> None:
        if self._held[2] <= LARGEST and len(_idle) < MOST:
            _idle.append(self._held)


def _fresh(count: int) -> tuple[torch.Tensor, int, int]:
    memory = torch.empty(count + _LINE, dtype=torch.uint8, device="cpu")
    return memory, memory.data_ptr() + -memory.data_ptr() % _LINE, count
