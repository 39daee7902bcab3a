"""Packed files: a packed model kept on disk, so that the next start neither reads float32 weights nor packs them again.

In: a PackedModel and the fingerprint of what it was packed from.   Out: one safetensors file, and the model read back.
Knows nothing about: where models are stored, engines.
Invariants: a file appears whole or not at all; one of another fingerprint, another layout or other shapes is not read but made
anew. It is a cache of this user's own folder: it is read like the checkpoint beside it, unexecuted, shapes and scales checked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from toolkit.model.config import ModelConfig
from toolkit.model.native.arena import Arena
from toolkit.model.native.library import TILE
from toolkit.model.native.pack import Packed, steps_and_offsets, tiles_shape
from toolkit.model.native.packed import PackedLayer, PackedModel

LAYOUT = 1  # raised when packing writes something else
_MATRICES = ("qkv", "o", "gate_up", "down")


def save_packed(path: Path, model: PackedModel, mark: str) -> bool:
    """Write the file beside its final place, then rename. False where the folder cannot be written: then there is no file."""
    from safetensors.torch import save_file

    spare = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(dict(_tensors(model)), spare, metadata=_about(mark, model.bits))
        spare.replace(path)
    except OSError:
        with suppress(OSError):
            spare.unlink()
        return False
    return True


def load_packed(path: Path, config: ModelConfig, mark: str, bits: int = 8) -> PackedModel | None:
    """The model in the file; None where there is none, or one of something else (other bits, too), or a damaged one."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            if file.metadata() != _about(mark, bits):
                return None
            return _Reader(file, config, bits).model()
    except (OSError, SafetensorError, _UnfitError):
        return None


class _UnfitError(Exception):
    """The file does not hold this model."""


class _Reader:
    """Copies tensors out of an open file into an arena, each with the shape that the config demands."""

    def __init__(self, file: Any, config: ModelConfig, bits: int) -> None:
        self._file, self._config, self._bits = file, config, bits
        self._names = set(file.keys())
        self._arena = Arena()

    def model(self) -> PackedModel:
        c = self._config
        layers = tuple(self._layer(f"layers.{i}.") for i in range(c.layers))
        head = self._matrix("head", c.vocab_size, c.hidden_size, bits=8)
        embedding = head if c.tied else self._matrix("embedding", c.vocab_size, c.hidden_size, bits=8)
        model = PackedModel(c, layers, self._floats("norm", c.hidden_size), head, embedding, self._bits)
        if self._names:
            raise _UnfitError
        return model

    def _layer(self, prefix: str) -> PackedLayer:
        c = self._config
        width = c.heads * c.head_dim
        norm = {name: self._floats(prefix + name, c.head_dim) for name in ("q_norm", "k_norm") if c.qk_norm}
        return PackedLayer(
            self._matrix(prefix + "qkv", width + 2 * c.kv_heads * c.head_dim, c.hidden_size, bias=c.qkv_bias),
            self._matrix(prefix + "o", c.hidden_size, width, bias=c.o_bias),
            self._matrix(prefix + "gate_up", 2 * c.intermediate, c.hidden_size),
            self._matrix(prefix + "down", c.hidden_size, c.intermediate),
            self._floats(prefix + "attention_norm", c.hidden_size),
            self._floats(prefix + "mlp_norm", c.hidden_size),
            **norm,
        )

    def _matrix(self, name: str, outputs: int, inputs: int, *, bias: bool = False, bits: int | None = None) -> Packed:
        padded, bits = -(-outputs // TILE) * TILE, bits or self._bits
        stored = self._take(f"{name}.tiles", torch.int8, tiles_shape(outputs, inputs, bits))
        if bits == 4 and not bool(steps_and_offsets(stored).isfinite().all()):
            raise _UnfitError
        tiles = self._arena.take(prod(stored.shape)).view(stored.shape)
        tiles.copy_(stored)
        offset = self._floats(f"{name}.bias", padded) if bias else None
        return Packed(tiles, self._floats(f"{name}.scale", padded), offset, outputs, inputs, bits)

    def _floats(self, name: str, count: int) -> Tensor:
        found = self._take(name, torch.float32, (count,)).clone()
        if not bool(torch.isfinite(found).all()):
            raise _UnfitError
        return found

    def _take(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        if name not in self._names:
            raise _UnfitError
        self._names.remove(name)
        found: Tensor = self._file.get_tensor(name)
        if found.dtype != dtype or tuple(found.shape) != shape:
            raise _UnfitError
        return found


def _tensors(model: PackedModel) -> Iterator[tuple[str, Tensor]]:
    for i, layer in enumerate(model.layers):
        for name, matrix in zip(_MATRICES, layer.matrices, strict=True):
            yield from _matrix(f"layers.{i}.{name}", matrix)
        for name, norm in zip(("attention_norm", "mlp_norm", "q_norm", "k_norm"), layer.norms, strict=True):
            if norm is not None:
                yield f"layers.{i}.{name}", norm
    yield from _matrix("head", model.head)
    if model.embedding is not model.head:
        yield from _matrix("embedding", model.embedding)
    if model.norm is not None:
        yield "norm", model.norm


def _matrix(name: str, matrix: Packed) -> Iterator[tuple[str, Tensor]]:
    yield f"{name}.tiles", matrix.tiles.contiguous()
    yield f"{name}.scale", matrix.scale
    if matrix.bias is not None:
        yield f"{name}.bias", matrix.bias


def _about(mark: str, bits: int) -> dict[str, str]:
    about = {"fingerprint": mark, "layout": str(LAYOUT), "tile": str(TILE)}
    return about if bits == 8 else about | {"bits": str(bits)}
