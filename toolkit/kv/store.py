"""KVStore: the tensors behind the blocks.

keys, values [L, Hkv, slots, Dh] with slot = block * block_size + offset. Heads come before slots so that one head's
keys of a run of slots are one matrix.
Knows nothing about: who owns a block.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from toolkit.kv.table import BlockCopy


class Store(Protocol):
    """What attention needs of a memory of keys and values. Queries go in by `inward`, sums of values come out by `outward`."""

    block_size: int
    kv_heads: int
    device: torch.device

    @property
    def nbytes(self) -> int: ...

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None: ...

    def read(self, layer: int, slots: Tensor | slice) -> tuple[Tensor, Tensor]: ...

    def inward(self, x: Tensor) -> Tensor: ...

    def outward(self, x: Tensor) -> Tensor: ...

    def copy(self, copies: Sequence[BlockCopy]) -> None: ...

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None: ...

    def slices(self, block: int) -> tuple[Tensor, ...]: ...


class KVStore:
    """Keys and values of all layers for `blocks` blocks of `block_size` tokens. Zeroed pages cost memory only once written."""

    def __init__(
        self,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (layers, kv_heads, blocks * block_size, head_dim)
        self.block_size, self.kv_heads, self.device = block_size, kv_heads, device
        self.keys = fresh_zeros(shape, dtype, device)
        self.values = fresh_zeros(shape, dtype, device)

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values."""
        return self.keys.nbytes + self.values.nbytes

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store k, v [T, Hkv, Dh] of one layer into `slots` [T]."""
        self.keys[layer].index_copy_(1, slots, k.transpose(0, 1))
        self.values[layer].index_copy_(1, slots, v.transpose(0, 1))

    def read(self, layer: int, slots: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Keys and values [Hkv, S, Dh] of one layer at `slots`."""
        return self.gather(self.keys[layer], slots), self.gather(self.values[layer], slots)

    def inward(self, x: Tensor) -> Tensor:
        """Rows [..., Dh] in the basis of what `read` gives: their own."""
        return x

    def outward(self, x: Tensor) -> Tensor:
        """Back from there."""
        return x

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Carry out copy-on-write, every layer."""
        for source, target, used in copies:
            read, write = source * self.block_size, target * self.block_size
            for tensor in (self.keys, self.values):
                tensor[:, :, write : write + used] = tensor[:, :, read : read + used]

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy the slots `sources` to the slots `targets`, every layer; read before written, so they may overlap."""
        pairs = [(source, target) for source, target in zip(sources, targets, strict=True) if source != target]
        if len(pairs) == 1:  # most often, and then a plain copy is quicker
            ((source, target),) = pairs
            for tensor in (self.keys, self.values):
                tensor[:, :, target] = tensor[:, :, source]
        elif pairs:
            read, write = (torch.tensor(slots, dtype=torch.long, device=self.keys.device) for slots in zip(*pairs, strict=True))
            for tensor in (self.keys, self.values):
                tensor.index_copy_(2, write, tensor.index_select(2, read))

    def slices(self, block: int) -> tuple[Tensor, ...]:
        """All that is kept of one block, as views [L, Hkv, block_size, Dh]."""
        here = slice(block * self.block_size, (block + 1) * self.block_size)
        return self.keys[:, :, here], self.values[:, :, here]

    def gather(self, tensor: Tensor, slots: Tensor | slice) -> Tensor:
        """One layer's [Hkv, slots, Dh] at `slots`: a view for a slice, a copy for a list."""
        return tensor[:, slots] if isinstance(slots, slice) else tensor.index_select(1, slots)


def fresh_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on the CPU fresh pages of the system, which torch.zeros would write to at once."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{size} bytes of keys or values do not fit into memory") from error
    return torch.frombuffer(memory, dtype=dtype).view(shape)
