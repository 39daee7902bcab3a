"""NativeDecoder: the face of the torch Decoder over the native pass.

In: token ids and positions [T] int64, the cache slots of every row.   Out: hidden rows [T, D], logits [R, V] float32.
Knows nothing about: which row belongs to which sequence, blocks, sampling, files.
Invariants: no state between calls but how long they took (several threads may call); weights are never written; a row's bits depend on its own
sequence only; every index that C follows is checked here.
Source: native.h.
"""

from __future__ import annotations

import time
from copy import copy
from ctypes import byref
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolkit.contracts import require
from toolkit.errors import EngineError, UnsupportedError, UsageError
from toolkit.model.config import ModelConfig
from toolkit.model.decoder import Block, Decoder, rope_frequencies
from toolkit.model.native.arena import Arena
from toolkit.model.native.crew import Crew
from toolkit.model.native.library import LANES, TILE, CLayer, CModel, CPass, kernel_index, kernels, library
from toolkit.model.native.pack import Packed, interleave, pack

_LINE = 64  # bytes of a cache line
_ANGLES = 1 << 24  # entries of one rotation table: context * head_dim / 2


class SlotRows(Protocol):
    """Where rows of a pass read and write the cache: row t attends to slots[first[t] : first[t] + seen[t]], its own last."""

    @property
    def keys(self) -> Tensor:
        """[L, Hkv, slots, Dh] float32, contiguous."""

    @property
    def values(self) -> Tensor:
        """As `keys`."""

    @property
    def own(self) -> NDArray[np.int64]:
        """[T]: the slot that takes the row's key and value; no two rows share one."""

    @property
    def first(self) -> NDArray[np.int64]:
        """[T]: where the row's list begins."""

    @property
    def seen(self) -> NDArray[np.int64]:
        """[T]: how long it is, at least 1."""

    @property
    def slots(self) -> NDArray[np.int32]:
        """The lists, one after the other; rows may share one."""


class NativeDecoder:
    """int8 weights and the native forward pass. threads: None takes torch's number, or one where that is faster."""

    def __init__(self, decoder: Decoder, *, kernels: str | None = None, threads: int | None = None) -> None:
        """Pack a torch decoder on the CPU. UnsupportedError for one whose shape or dtype the kernels do not take."""
        why = refusal(decoder.config, decoder.device, decoder.dtype)
        if why is not None:
            raise UnsupportedError(f"the native int8 path cannot run this model: {why}", hint='format="float32"')
        if threads is not None and threads < 1:
            raise UsageError(f"threads = {threads} is not allowed: None or an integer >= 1")
        self.config = decoder.config
        self.threads = threads
        self._library = library()
        self._kernels = kernel_index(kernels)
        self._crew, self._head_crew = Crew(), Crew()
        self._arena = Arena()
        self._kept: list[Any] = []  # what C has pointers to, next to the packed matrices:
        self._layers: list[tuple[Packed, ...]] = []
        self._ends: list[Packed] = []  # head and embedding, one where they are tied
        self._model = self._build(decoder)

    def first(self, layers: int) -> NativeDecoder:
        """The decoder of the first `layers` layers with this one's final norm and head; no weight is copied."""
        require(1 <= layers <= self.config.layers, "layers", layers, f"an integer from 1 to {self.config.layers}")
        part = copy(self)  # keeps what C has pointers to
        part.config = replace(self.config, layers=layers)
        part._crew, part._head_crew = Crew(), Crew()
        part._model = CModel.from_buffer_copy(self._model)
        part._model.layers = layers
        return part

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """Of hidden rows, keys and values."""
        return torch.float32

    @property
    def kernels(self) -> str:
        """Name of the kernel set in use."""
        return next(name for name, index in kernels().items() if index == self._kernels)

    @property
    def nbytes(self) -> int:
        """Bytes of packed weights that a pass and its head read, or look rows up in."""
        layers = [packed for layer in self._layers[: self.config.layers] for packed in layer]
        return sum(packed.nbytes for packed in (*layers, *self._ends))

    def forward(self, tokens: Tensor, positions: Tensor, kv: SlotRows) -> Tensor:
        """Hidden rows [T, D] after the final norm, of tokens [T] int64 at positions [T] int64."""
        rows = len(tokens)
        hidden = torch.empty(rows, self.config.hidden_size)
        if rows == 0:
            return hidden
        longest = self._check(tokens, positions, kv)
        most = torch.get_num_threads()
        threads = self.threads or self._crew.choose(rows, most)
        space = _space(self._library.native_space(byref(self._model), rows, longest, threads))
        began = time.perf_counter()
        arrays: list[NDArray[Any]] = [kv.own, kv.first, kv.seen, kv.slots]
        self._library.native_forward(
            byref(self._model),
            byref(
                CPass(
                    rows, threads, kv.keys.shape[2], longest, tokens.data_ptr(), positions.data_ptr(),
                    *(array.ctypes.data for array in arrays),
                    kv.keys.data_ptr(), kv.values.data_ptr(), hidden.data_ptr(), space.data_ptr(),
                )
            ),
        )  # fmt: skip
        self._crew.learn(rows, most, threads, time.perf_counter() - began)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, V] float32 of hidden rows [R, D]."""
        rows, most = max(1, len(hidden)), torch.get_num_threads()
        threads = self.threads or self._head_crew.choose(rows, most)
        began = time.perf_counter()
        found = linear(self._head, hidden, self._kernels, threads)
        self._head_crew.learn(rows, most, threads, time.perf_counter() - began)
        return found

    def _check(self, tokens: Tensor, positions: Tensor, kv: SlotRows) -> int:
        """Raise EngineError for anything that would lead C astray; returns the most slots a row sees."""
        config, rows = self.config, len(tokens)
        cache = (config.layers, config.kv_heads, kv.keys.shape[2], config.head_dim)
        for name, tensor in (("keys", kv.keys), ("values", kv.values)):
            if tuple(tensor.shape) != cache or tensor.dtype != torch.float32 or not tensor.is_contiguous():
                raise EngineError(f"{name} {list(tensor.shape)} {tensor.dtype} must be contiguous float32 {list(cache)}")
        for name, ids, stop in (("tokens", tokens, config.vocab_size), ("positions", positions, config.context)):
            if ids.dtype != torch.int64 or ids.shape != (rows,) or not ids.is_contiguous():
                raise EngineError(f"{name} must be {rows} contiguous int64")
            _within(name, ids.numpy(), 0, stop)
        for name, array, kind, shape in (
            ("own", kv.own, np.int64, (rows,)), ("first", kv.first, np.int64, (rows,)), ("seen", kv.seen, np.int64, (rows,)),
            ("slots", kv.slots, np.int32, (kv.slots.size,)),
        ):  # fmt: skip
            if array.dtype != kind or array.shape != shape or not array.flags.c_contiguous:
                raise EngineError(f"{name} must be contiguous {np.dtype(kind).name} of shape {shape}")
        _within("own", kv.own, 0, cache[2])
        _within("slots", kv.slots, 0, cache[2])
        _within("seen", kv.seen, 1, kv.slots.size + 1)
        _within("first", kv.first, 0, kv.slots.size)
        _within("first + seen", kv.first + kv.seen, 1, kv.slots.size + 1)
        return int(kv.seen.max())

    def _build(self, decoder: Decoder) -> CModel:
        config = decoder.config
        layers = (CLayer * config.layers)(*(self._layer(block) for block in decoder.blocks))
        self._ends.append(pack(decoder.head.weight, decoder.head.bias, self._arena))
        if decoder.head.weight is not decoder.embedding:
            self._ends.append(pack(decoder.embedding, None, self._arena))
        self._head, embedding = self._ends[0], self._ends[-1]
        angles = torch.arange(config.context, dtype=torch.float32)[:, None] * rope_frequencies(config)
        self._kept.append(layers)
        return CModel(
            config.hidden_size, config.layers, config.heads, config.kv_heads, config.head_dim, config.intermediate,
            config.rms_eps, self._kernels, layers, self._floats(decoder.norm), self._head.c(), embedding.c(),
            self._floats(angles.cos()), self._floats(angles.sin()),
        )  # fmt: skip

    def _layer(self, block: Block) -> CLayer:
        gate_up = interleave(block.gate_up.weight)
        matrices = (
            (block.qkv.weight, block.qkv.bias),
            (block.o.weight, block.o.bias),
            (gate_up, None),
            (block.down.weight, block.down.bias),
        )
        norms = (block.attention_norm, block.mlp_norm, block.q_norm, block.k_norm)
        self._layers.append(tuple(pack(*matrix, self._arena) for matrix in matrices))
        return CLayer(*(packed.c() for packed in self._layers[-1]), *(self._floats(norm) for norm in norms))

    def _floats(self, tensor: Tensor | None) -> int | None:
        """Pointer to a contiguous float32 copy that lives as long as this decoder."""
        if tensor is None:
            return None
        self._kept.append(tensor.detach().to(torch.float32).clone(memory_format=torch.contiguous_format))
        return int(self._kept[-1].data_ptr())


def linear(weights: Packed, x: Tensor, kernels: int, threads: int | None = None) -> Tensor:
    """[R, outputs] float32 of x [R, inputs] float32: one product of the native path, rows quantised one by one."""
    if x.dtype != torch.float32 or x.dim() != 2 or x.shape[1] != weights.inputs:
        raise EngineError(f"x {list(x.shape)} {x.dtype} must be float32 [rows, {weights.inputs}]")
    x, lib = x.contiguous(), library()
    out = torch.empty(len(x), len(weights.scale))
    if len(x):
        space = _space(lib.native_linear_space(byref(weights.c()), len(x)))
        many = threads or torch.get_num_threads()
        lib.native_linear(byref(weights.c()), kernels, x.data_ptr(), len(x), many, out.data_ptr(), space.data_ptr())
    return out[:, : weights.outputs]


def refusal(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the native path cannot run a model of this shape, None where it can."""
    if device.type != "cpu":
        return f"it is on {device}, the kernels run on the CPU"
    if dtype != torch.float32:
        return f"its weights are {dtype}, the kernels are packed from float32"
    for name, unit in (("hidden_size", LANES), ("head_dim", LANES), ("intermediate", TILE // 2)):
        if getattr(config, name) % unit:
            return f"{name} = {getattr(config, name)} is no multiple of {unit}"
    if config.context * config.head_dim // 2 > _ANGLES:
        return f"a context of {config.context} positions x head_dim {config.head_dim} exceeds its rotation table"
    return None


def _within(name: str, array: NDArray[Any], least: int, stop: int) -> None:
    if array.size and not (least <= int(array.min()) and int(array.max()) < stop):
        raise EngineError(f"{name} runs from {array.min()} to {array.max()}: allowed is {least} to {stop - 1}")


def _space(count: int) -> Tensor:
    """Memory of `count` bytes that starts on a cache line."""
    memory = torch.empty(count + _LINE, dtype=torch.uint8)
    return memory[-memory.data_ptr() % _LINE :]
