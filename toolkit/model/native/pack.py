"""Pack: float32 weights -> 8 bits and one scale an output, or 4 bits and a step and an offset for every 32 inputs of an output.

In: weight [outputs, inputs] float32, bias [outputs] or None.   Out: a Packed of tensors that outlive the C pointers to them.
Knows nothing about: models, passes.
Invariants: 8 bits: weight ~ scale * W with |W| <= 127. 4 bits: weight ~ scale * (step * W + offset) with W from 0 to 15, least and
largest weight of 32 met within half precision; weights that lie on such a grid already (GGUF's Q4_1) are met exactly. Outputs
are padded with zeros to whole tiles.
Source: own; round-to-nearest quantisation, the layouts are told in native.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from toolkit.errors import InputError, UnsupportedError
from toolkit.model.native.arena import Arena
from toolkit.model.native.library import SPAN, SPAN_BYTES, TILE, CLinear, library


@dataclass(frozen=True, slots=True)
class Packed:
    """tiles int8 [outputs / 32, inputs / 2, 32, 2], at 4 bits [outputs / 32, inputs / 32, 640]; scale and bias [outputs padded] float32."""

    tiles: Tensor
    scale: Tensor
    bias: Tensor | None
    outputs: int
    inputs: int
    bits: int = 8

    def c(self) -> CLinear:
        """Pointers into these tensors, valid while this object lives."""
        bias = None if self.bias is None else self.bias.data_ptr()
        return CLinear(self.tiles.data_ptr(), self.scale.data_ptr(), bias, self.outputs, self.inputs, self.bits)

    def rows(self, outputs: Tensor) -> Tensor:
        """Rows [n, inputs] float32 of a matrix of 8 bits, as they are multiplied with; outputs [n] int64."""
        assert self.bits == 8  # embeddings and heads are
        return self.tiles[outputs // TILE, :, outputs % TILE].reshape(len(outputs), -1) * self.scale[outputs, None]

    @property
    def nbytes(self) -> int:
        """Bytes of weights and scales."""
        return self.tiles.nbytes + self.scale.nbytes


def tiles_shape(outputs: int, inputs: int, bits: int) -> tuple[int, ...]:
    """Of the tiles of a matrix."""
    tiles = -(-outputs // TILE)
    return (tiles, inputs // 2, TILE, 2) if bits == 8 else (tiles, inputs // SPAN, SPAN_BYTES)


def steps_and_offsets(tiles: Tensor) -> Tensor:
    """[outputs / 32, inputs / 32, 2, 32] float16 of tiles of 4 bits, a copy."""
    heads = tiles[..., : 4 * TILE].contiguous().view(torch.float16)
    return heads.view(*heads.shape[:-1], 2, TILE)


def pack(weight: Tensor, bias: Tensor | None = None, arena: Arena | None = None, *, bits: int = 8) -> Packed:
    """Quantise and tile one matrix into the arena (or one of its own), at 8 or 4 bits.

    InputError for one that is not finite, UnsupportedError at 4 bits where its inputs are no multiple of 32.
    """
    weight = weight.detach().to(torch.float32).contiguous()
    if not bool(torch.isfinite(weight.sum())) and not bool(torch.isfinite(weight).all()):
        raise InputError("a weight is not finite")
    outputs, inputs = weight.shape
    padded, shape = -(-outputs // TILE) * TILE, tiles_shape(outputs, inputs, bits)
    tiles, scale = (arena or Arena()).take(prod(shape)).view(shape), torch.zeros(padded)
    if bits == 8:
        threads = torch.get_num_threads()
        library().native_pack(weight.data_ptr(), outputs, inputs, threads, tiles.data_ptr(), scale.data_ptr())
    else:
        _pack4(torch.nn.functional.pad(weight, (0, 0, 0, padded - outputs)), tiles, scale)
    if bias is not None:
        bias = torch.nn.functional.pad(bias.detach().to(torch.float32), (0, padded - outputs)).contiguous()
    return Packed(tiles, scale, bias, outputs, inputs, bits)


def _pack4(weight: Tensor, tiles: Tensor, scale: Tensor) -> None:
    """Fill tiles and scale with a weight [outputs padded, inputs] at 4 bits."""
    padded, inputs = weight.shape
    if inputs % SPAN:
        raise UnsupportedError(f"a matrix of {inputs} inputs has no form of 4 bits: they must be a multiple of {SPAN}")
    exponents = torch.frexp(weight.abs().amax(1))[1].clamp(-100, 127)
    scale.copy_(torch.ldexp(torch.ones(padded), exponents - 1))  # the largest weight of an output becomes 1 ... 2
    spans = torch.ldexp(weight, 1 - exponents[:, None]).view(padded, inputs // SPAN, SPAN)
    least, most = spans.aminmax(dim=2)
    step, offset = ((most - least) / 15).half(), least.half()
    places = (spans - offset.float()[..., None]) / torch.where(step > 0, step.float(), 1.0)[..., None]
    fours = places.round().clamp(0, 15).to(torch.uint8).view(-1, TILE, inputs // SPAN, SPAN // 4, 2, 2)
    lines = (fours[..., 0, :] | fours[..., 1, :] << 4).permute(0, 2, 3, 1, 4)  # [tile, span, line, output, odd]
    heads = torch.stack((step, offset)).view(2, -1, TILE, inputs // SPAN).permute(1, 3, 0, 2).contiguous()
    found = tiles.view(torch.uint8)
    found[..., : 4 * TILE] = heads.view(torch.uint8).flatten(2)
    found[..., 4 * TILE :] = lines.flatten(2)


def interleave(gate_up: Tensor) -> Tensor:
    """Rows of [2 F, D] so that every tile of 32 has 16 gates and then the 16 ups that belong to them."""
    gate, up = gate_up.chunk(2)
    half = TILE // 2
    return torch.stack((gate.view(-1, half, gate.shape[1]), up.view(-1, half, up.shape[1])), 1).view(gate_up.shape)
