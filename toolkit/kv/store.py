"""KVStore: the tensors behind the blocks.

keys, values [L, Hkv, slots, Dh] with slot = block * block_size + offset. Heads come before slots so that one head's
keys of a run of slots are one matrix.
Knows nothing about: who owns a block.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

from toolkit.kv.table import BlockCopy


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
        self.block_size = block_size
        self.keys = _zeros(shape, dtype, device)
        self.values = _zeros(shape, dtype, device)

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store k, v [T, Hkv, Dh] of one layer into `slots` [T]."""
        self.keys[layer].index_copy_(1, slots, k.transpose(0, 1))
        self.values[layer].index_copy_(1, slots, v.transpose(0, 1))

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Carry out copy-on-write: whole blocks, every layer."""
        size = self.block_size
        for source, target in copies:
            for tensor in (self.keys, self.values):
                tensor[:, :, target * size : (target + 1) * size] = tensor[:, :, source * size : (source + 1) * size]

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy the slots `sources` to the slots `targets`, every layer; read before written, so they may overlap."""
        if list(sources) != list(targets):
            device = self.keys.device
            read, write = (torch.tensor(slots, dtype=torch.long, device=device) for slots in (sources, targets))
            for tensor in (self.keys, self.values):
                tensor.index_copy_(2, write, tensor.index_select(2, read))

    def gather(self, tensor: Tensor, slots: Tensor | slice) -> Tensor:
        """One layer's [Hkv, slots, Dh] at `slots`: a view for a slice, a copy for a list."""
        return tensor[:, slots] if isinstance(slots, slice) else tensor.index_select(1, slots)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on the CPU fresh pages of the system, which torch.zeros would write to at once."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{size} bytes of keys or values do not fit into memory") from error
    return torch.frombuffer(memory, dtype=dtype).view(shape)
