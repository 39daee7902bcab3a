"""QuantisedStore: keys and values of 4 bits a number, packed - a KVStore of a seventh of float32's bytes, at a price in quality.

    vector x [Dh]  ->  norm |x|, rotated R x / |x|  ->  one code of `bits` bits a coordinate, nearest level of one fixed codebook
    R = H diag(s) / sqrt(Dh): Hadamard, s = random signs of a fixed seed: no coordinate stands out whatever the model's channels are

Attention stays in the rotated basis: q is rotated on its way in (q.k = Rq.Rk), the sum of values on its way out; what is read is
codebook[code] * norm. The levels are Lloyd-Max's for a coordinate of a random unit vector, density ~ (1 - x^2)^((Dh-3)/2).
In, out: as KVStore. `roundtrip` is what a vector becomes, the twin of write, read and outward.
Knows nothing about: who owns a block, attention.
Invariants: a vector's codes depend on that vector alone and come from the same additions in the same order however many are written
together; copying and moving slots copies codes, nothing is quantised twice.
Source: TurboQuant (2504.19874), section 3.1, its MSE variant; departures: a randomised Hadamard matrix in place of a uniform rotation
(as QuIP#, 2402.04396), norms in bfloat16, no residual bit (its inner-product variant).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolkit.contracts import require
from toolkit.errors import UnsupportedError
from toolkit.kv.store import fresh_zeros
from toolkit.kv.table import BlockCopy

BITS = (1, 2, 4)
_SEED = 0x7102
_GRID = 1 << 14  # points at which the density is known
_ROUNDS = 400


class QuantisedStore:
    """Codes [L, 2, Hkv, slots, Dh * bits / 8] uint8 and norms [L, 2, Hkv, slots] bfloat16; 0 are keys, 1 are values.

    UnsupportedError for head dimensions that are no power of two from 8 to 1024: the Hadamard matrix needs that.
    """

    def __init__(
        self, *, layers: int, kv_heads: int, head_dim: int, blocks: int, block_size: int, dtype: torch.dtype,
        device: torch.device, bits: int = 4,
    ) -> None:  # fmt: skip
        require(bits in BITS, "bits", bits, "1, 2 or 4")
        if head_dim & (head_dim - 1) or not 8 <= head_dim <= 1024:
            raise UnsupportedError(
                f"quantised KV rotates heads by a Hadamard matrix: their dimension {head_dim} is no power of two from 8 to 1024",
                hint='kv_dtype="auto"',
            )
        self.block_size, self.kv_heads, self.device, self.bits = block_size, kv_heads, device, bits
        self._dtype = dtype
        slots = blocks * block_size
        self.codes = fresh_zeros((layers, 2, kv_heads, slots, head_dim * bits // 8), torch.uint8, device)
        self.norms = fresh_zeros((layers, 2, kv_heads, slots), torch.bfloat16, device)
        self._signs = signs(head_dim).to(device)
        levels = torch.from_numpy(codebook(head_dim, bits))
        self._borders = ((levels[1:] + levels[:-1]) / 2).float().to(device)
        places = torch.arange(0, 8, bits)
        self._shifts = places.to(torch.uint8).to(device)
        self._levels = levels.float()[torch.arange(256)[:, None] >> places & (1 << bits) - 1].to(device)  # [256, 8 / bits]

    @property
    def nbytes(self) -> int:
        """Bytes of all codes and norms."""
        return self.codes.nbytes + self.norms.nbytes

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store k, v [T, Hkv, Dh] of one layer into `slots` [T]."""
        codes, norms = self._packed(torch.stack((k, v)).transpose(1, 2))  # [2, Hkv, T, ...]
        self.codes[layer].index_copy_(2, slots, codes)
        self.norms[layer].index_copy_(2, slots, norms)

    def read(self, layer: int, slots: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Rotated keys and values [Hkv, S, Dh] of one layer at `slots`."""
        codes, norms = self.codes[layer], self.norms[layer]
        if isinstance(slots, slice):
            codes, norms = codes[:, :, slots], norms[:, :, slots]
        else:
            codes, norms = codes.index_select(2, slots), norms.index_select(2, slots)
        found = self._unpacked(codes, norms).to(self._dtype)
        return found[0], found[1]

    def inward(self, x: Tensor) -> Tensor:
        """Rows [..., Dh] in the basis of what `read` gives."""
        return hadamard(x.float() * self._signs).to(x.dtype)

    def outward(self, x: Tensor) -> Tensor:
        """Back from there."""
        return (hadamard(x.float()) * self._signs).to(x.dtype)

    def roundtrip(self, x: Tensor) -> Tensor:
        """What is left of vectors [..., Dh] that are written and read again, in their own basis."""
        return self.outward(self._unpacked(*self._packed(x)).to(x.dtype))

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Carry out copy-on-write, every layer."""
        for source, target, used in copies:
            read, write = source * self.block_size, target * self.block_size
            for tensor in (self.codes, self.norms):
                tensor[:, :, :, write : write + used] = tensor[:, :, :, read : read + used]

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy the slots `sources` to the slots `targets`, every layer; read before written, so they may overlap."""
        if list(sources) != list(targets):
            read, write = (torch.tensor(slots, dtype=torch.long, device=self.device) for slots in (sources, targets))
            for tensor in (self.codes, self.norms):
                tensor.index_copy_(3, write, tensor.index_select(3, read))

    def slices(self, block: int) -> tuple[Tensor, ...]:
        """All that is kept of one block, as views [L, 2, Hkv, block_size, ...]."""
        here = slice(block * self.block_size, (block + 1) * self.block_size)
        return self.codes[:, :, :, here], self.norms[:, :, :, here]

    def _packed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Codes [..., Dh * bits / 8] and norms [...] of vectors [..., Dh]."""
        rotated = self.inward(x.float())
        norms = torch.linalg.vector_norm(rotated, dim=-1)
        unit = rotated / norms.clamp(min=torch.finfo(torch.float32).tiny)[..., None]
        codes = torch.bucketize(unit, self._borders).to(torch.uint8)
        codes = codes.reshape(*codes.shape[:-1], -1, len(self._shifts))
        return (codes << self._shifts).sum(-1, dtype=torch.uint8), norms.to(torch.bfloat16)

    def _unpacked(self, codes: Tensor, norms: Tensor) -> Tensor:
        found: Tensor = self._levels[codes.int()].flatten(-2) * norms.float()[..., None]
        return found


def hadamard(x: Tensor) -> Tensor:
    """H x / sqrt(D) of vectors [..., D], D a power of two, by additions: its own inverse."""
    size = x.shape[-1]
    step = 1
    while step < size:
        pairs = x.reshape(*x.shape[:-1], -1, 2, step)
        x = torch.stack((pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]), -2).flatten(-3)
        step *= 2
    return x / math.sqrt(size)


def signs(head_dim: int) -> Tensor:
    """[Dh] float32 of +1 and -1, always the same."""
    random = torch.Generator().manual_seed(_SEED)
    return torch.randint(0, 2, (head_dim,), generator=random).float() * 2 - 1


@cache
def codebook(head_dim: int, bits: int) -> NDArray[np.float64]:
    """Levels [2^bits], rising: Lloyd-Max for one coordinate of a random unit vector in `head_dim` dimensions."""
    points: NDArray[np.float64] = np.linspace(-1.0, 1.0, _GRID + 1)[:-1] + 1.0 / _GRID
    density = (1.0 - points**2) ** ((head_dim - 3) / 2)
    mass = np.concatenate(([0.0], np.cumsum(density)))
    moment = np.concatenate(([0.0], np.cumsum(density * points)))
    shares = (np.arange(1 << bits) + 0.5) / (1 << bits)
    levels: NDArray[np.float64] = points[np.searchsorted(mass[1:], shares * mass[-1])]
    for _ in range(_ROUNDS):
        borders = np.searchsorted(points, (levels[1:] + levels[:-1]) / 2)
        ends = np.concatenate(([0], borders, [_GRID]))
        levels = np.diff(moment[ends]) / np.diff(mass[ends])
    return levels
