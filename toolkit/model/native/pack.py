"""Pack: float32 weights -> int8 rows with one scale each, in the tiles that the kernels read.

In: weight [outputs, inputs] float32, bias [outputs] or None.   Out: a Packed of tensors that outlive the C pointers to them.
Knows nothing about: models, passes.
Invariants: weight ~ scale * W with |W| <= 127; outputs are padded with zeros to whole tiles.
Source: own; symmetric round-to-nearest quantisation, the layout is told in native.h.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from toolkit.errors import InputError
from toolkit.model.native.arena import Arena
from toolkit.model.native.library import TILE, CLinear, library


@dataclass(frozen=True, slots=True)
class Packed:
    """tiles [outputs / 32, inputs / 2, 32, 2] int8, scale and bias [outputs padded] float32."""

    tiles: Tensor
    scale: Tensor
    bias: Tensor | None
    outputs: int
    inputs: int

    def c(self) -> CLinear:
        """Pointers into these tensors, valid while this object lives."""
        bias = None if self.bias is None else self.bias.data_ptr()
        return CLinear(self.tiles.data_ptr(), self.scale.data_ptr(), bias, self.outputs, self.inputs)

    def rows(self, outputs: Tensor) -> Tensor:
        """Rows [n, inputs] float32 of the matrix, as int8 and scale stand for them; outputs [n] int64."""
        return self.tiles[outputs // TILE, :, outputs % TILE].reshape(len(outputs), -1) * self.scale[outputs, None]

    @property
    def nbytes(self) -> int:
        """Bytes of weights and scales."""
        return self.tiles.nbytes + self.scale.nbytes


def pack(weight: Tensor, bias: Tensor | None = None, arena: Arena | None = None) -> Packed:
    """Quantise and tile one matrix into the arena (or one of its own). InputError for one that is not finite."""
    weight = weight.detach().to(torch.float32).contiguous()
    if not bool(torch.isfinite(weight.sum())) and not bool(torch.isfinite(weight).all()):
        raise InputError("a weight is not finite")
    outputs, inputs = weight.shape
    padded = -(-outputs // TILE) * TILE
    tiles = (arena or Arena()).take(padded * inputs).view(padded // TILE, inputs // 2, TILE, 2)
    scale = torch.zeros(padded)
    threads = torch.get_num_threads()
    library().native_pack(weight.data_ptr(), outputs, inputs, threads, tiles.data_ptr(), scale.data_ptr())
    if bias is not None:
        bias = torch.nn.functional.pad(bias.detach().to(torch.float32), (0, padded - outputs)).contiguous()
    return Packed(tiles, scale, bias, outputs, inputs)


def interleave(gate_up: Tensor) -> Tensor:
    """Rows of [2 F, D] so that every tile of 32 has 16 gates and then the 16 ups that belong to them."""
    gate, up = gate_up.chunk(2)
    half = TILE // 2
    return torch.stack((gate.view(-1, half, gate.shape[1]), up.view(-1, half, up.shape[1])), 1).view(gate_up.shape)
