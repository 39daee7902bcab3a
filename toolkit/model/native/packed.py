"""PackedModel: a whole model in the form that the native pass reads, packed from a torch decoder.

In: a Decoder.   Out: packed matrices, norms, the config.
Knows nothing about: C structures, files, passes.
Invariants: matrices of one model lie in one arena; a tied head is the embedding, once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from toolkit.model.config import ModelConfig
from toolkit.model.decoder import Block, Decoder
from toolkit.model.native.arena import Arena
from toolkit.model.native.pack import Packed, interleave, pack


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """Matrices in the order that a pass takes them, and norms [D] or [Dh] float32, None where the model has none."""

    qkv: Packed
    o: Packed
    gate_up: Packed
    down: Packed
    attention_norm: Tensor | None
    mlp_norm: Tensor | None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None

    @property
    def matrices(self) -> tuple[Packed, ...]:
        return (self.qkv, self.o, self.gate_up, self.down)

    @property
    def norms(self) -> tuple[Tensor | None, ...]:
        return (self.attention_norm, self.mlp_norm, self.q_norm, self.k_norm)


@dataclass(frozen=True, slots=True)
class PackedEntry:
    """How a draft head begins: weights [D, 2 D] of [embedding of the token ; row that comes in], each after its norm [D] (None = none)."""

    weights: Packed
    embedding: Packed  # the target's
    embed_norm: Tensor | None = None
    input_norm: Tensor | None = None


@dataclass(frozen=True, slots=True)
class PackedModel:
    """`head` is `embedding` where the two are tied. `bits` are those of the layers' matrices; head and embedding have 8."""

    config: ModelConfig
    layers: tuple[PackedLayer, ...]
    norm: Tensor | None
    head: Packed
    embedding: Packed
    bits: int = 8


def pack_model(decoder: Decoder, bits: int = 8) -> PackedModel:
    """Quantise every matrix. InputError for weights that are not finite, UnsupportedError for widths that have no such form."""
    arena = Arena()
    layers = tuple(_layer(block, arena, bits) for block in decoder.blocks)
    head = pack(decoder.head.weight, decoder.head.bias, arena)
    tied = decoder.head.weight is decoder.embedding
    embedding = head if tied else pack(decoder.embedding, None, arena)
    return PackedModel(decoder.config, layers, floats(decoder.norm), head, embedding, bits)


def _layer(block: Block, arena: Arena, bits: int) -> PackedLayer:
    return PackedLayer(
        pack(block.qkv.weight, block.qkv.bias, arena, bits=bits),
        pack(block.o.weight, block.o.bias, arena, bits=bits),
        pack(interleave(block.gate_up.weight), None, arena, bits=bits),
        pack(block.down.weight, block.down.bias, arena, bits=bits),
        floats(block.attention_norm),
        floats(block.mlp_norm),
        floats(block.q_norm),
        floats(block.k_norm),
    )


def floats(tensor: Tensor | None) -> Tensor | None:
    """A contiguous float32 copy; None stays None."""
    return None if tensor is None else tensor.detach().to(torch.float32).clone(memory_format=torch.contiguous_format)
