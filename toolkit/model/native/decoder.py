"""NativeDecoder: the face of the torch Decoder over the native pass.

In: token ids and positions [T] int64, the cache slots of every row.   Out: hidden rows [T, D], logits [R, V] float32.
Knows nothing about: which row belongs to which sequence, blocks, sampling, files.
Invariants: no state between calls but how long they took (several threads may call); weights are never written; a row's bits depend on its own
sequence only; every index that C follows is checked: types and shapes here, values by C itself.
Source: native.h.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import copy
from ctypes import byref, pointer
from dataclasses import replace
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolkit.contracts import require
from toolkit.errors import EngineError, UnsupportedError, UsageError
from toolkit.model.config import ModelConfig
from toolkit.model.decoder import Decoder, check_depths, rope_frequencies
from toolkit.model.native.crew import Crew
from toolkit.model.native.library import (
    LANES,
    SPAN,
    TILE,
    CEntry,
    CLayer,
    CModel,
    CPass,
    kernel_index,
    kernels,
    library,
)
from toolkit.model.native.pack import Packed
from toolkit.model.native.packed import PackedEntry, PackedLayer, PackedModel, pack_model
from toolkit.model.native.scratch import scratch

_ANGLES = 1 << 24  # entries of one rotation table: context * head_dim / 2


class SlotRows(Protocol):
    """Where rows of a pass read and write the cache: row t attends to slots[first[t] : first[t] + seen[t] - 1] and own[t]."""

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

    @property
    def longest(self) -> int:
        """No row sees more."""


class NativeDecoder:
    """Integer weights and the native forward pass. threads: None takes torch's number, or one where that is faster."""

    def __init__(
        self, model: Decoder | PackedModel, *, bits: int | None = None, kernels: str | None = None, threads: int | None = None,
        entry: PackedEntry | None = None,
    ) -> None:  # fmt: skip
        """Pack a torch decoder on the CPU, or take a packed model. UnsupportedError where the kernels do not take its shape.

        bits: of the layers' weights, 8 or 4; None takes 8, or what a packed model has. entry: what a draft head begins with.
        """
        ok = bits in (None, 8, 4) if isinstance(model, Decoder) else bits in (None, model.bits)
        require(ok, "bits", bits, "None, 8 or 4" if isinstance(model, Decoder) else f"None or the packed model's {model.bits}")
        if isinstance(model, Decoder):
            why = refusal(model.config, model.device, model.dtype, bits or 8)
            if why is not None:
                raise UnsupportedError(f"the native int{bits or 8} path cannot run this model: {why}", hint='format="float32"')
        if threads is not None and threads < 1:
            raise UsageError(f"threads = {threads} is not allowed: None or an integer >= 1")
        self._library = library()
        self._kernels = kernel_index(kernels)
        self.packed = pack_model(model, bits or 8) if isinstance(model, Decoder) else model
        self.config = self.packed.config
        self.threads = threads
        self._entry = entry
        self._crew, self._head_crew = Crew(), Crew()
        self._kept: list[Any] = []  # what C has pointers to, next to the packed model
        self._head = self.packed.head
        self._model = self._build()

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
    def format(self) -> str:
        """ "int8" or "int4", after the layers' weights."""
        return f"int{self.packed.bits}"

    @property
    def kernels(self) -> str:
        """Name of the kernel set in use."""
        return next(name for name, index in kernels().items() if index == self._kernels)

    @property
    def kernel_set(self) -> int:
        """Its index, for `linear`."""
        return self._kernels

    @property
    def bytes_read(self) -> int:
        """Bytes of packed weights that a pass and its head read."""
        layers = (matrix for layer in self.packed.layers[: self.config.layers] for matrix in layer.matrices)
        return sum(matrix.nbytes for matrix in (*layers, self.packed.head))

    @property
    def nbytes(self) -> int:
        """Bytes of packed weights: those, and the embedding where it is another matrix."""
        apart = self.packed.embedding is not self.packed.head
        return self.bytes_read + (self.packed.embedding.nbytes if apart else 0)

    def forward(self, tokens: Tensor, positions: Tensor, kv: SlotRows) -> Tensor:
        """Hidden rows [T, D] after the final norm, of tokens [T] int64 at positions [T] int64."""
        return self.features(tokens, positions, kv, ())[0]

    def features(
        self, tokens: Tensor, positions: Tensor, kv: SlotRows, depths: Sequence[int], inputs: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`forward`, and the residual rows [len(depths), T, D] before each of the layers `depths`.

        inputs [T, D] float32 are the rows to start from, or to go through the entry with the tokens' embeddings; None takes the embeddings alone.
        """
        rows, width = tokens.shape[0], self.config.hidden_size
        hidden = torch.empty(rows, width, dtype=torch.float32, device="cpu")
        wanted = check_depths(depths, self.config) if depths else None
        residuals = hidden.new_empty(0 if wanted is None else len(wanted), rows, width)
        inputs = self._inputs(inputs, hidden)
        if rows == 0:
            return hidden, residuals
        self._check(tokens, positions, kv)
        most = torch.get_num_threads()
        threads = self.threads or self._crew.choose(rows, most)
        model = byref(self._model)
        with scratch(self._library.native_space(model, rows, kv.longest, threads)) as space:
            began = time.perf_counter()
            work = CPass(
                rows, threads, kv.keys.shape[2], kv.longest, tokens.data_ptr(), positions.data_ptr(),
                kv.own.ctypes.data, kv.first.ctypes.data, kv.seen.ctypes.data, kv.slots.ctypes.data,
                kv.keys.data_ptr(), kv.values.data_ptr(), hidden.data_ptr(), space, _pointer(inputs),
                None, 0, None, self.config.context, kv.slots.size,
            )  # fmt: skip
            if wanted is not None:
                work.depths, work.depths_all, work.residuals = wanted.ctypes.data, len(wanted), residuals.data_ptr()
            wrong = self._library.native_forward(model, byref(work))
        if wrong:
            self._refuse(tokens, positions, kv)
        self._crew.learn(rows, most, threads, time.perf_counter() - began)
        return hidden, residuals

    def _inputs(self, inputs: Tensor | None, hidden: Tensor) -> Tensor | None:
        """Rows to start from, as C reads them, for results `hidden`."""
        if inputs is None:
            if self._entry is not None:
                raise EngineError("a decoder with an entry needs input rows")
            return None
        inputs = inputs.contiguous()
        if inputs.shape != hidden.shape or not _is_plain(inputs, torch.float32):
            raise EngineError(f"inputs {list(inputs.shape)} {inputs.dtype} must be float32 {list(hidden.shape)} on the CPU")
        return inputs

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings [T, D] float32 of tokens [T] int64, as a pass starts from them."""
        return self.packed.embedding.rows(tokens)

    def head_rows(self, ids: Tensor) -> Tensor:
        """Rows [n, D] float32 of the head for tokens [n] int64, as they are multiplied with."""
        return self.packed.head.rows(ids)

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, V] float32 of hidden rows [R, D]."""
        rows, most = max(1, hidden.shape[0]), torch.get_num_threads()
        threads = self.threads or self._head_crew.choose(rows, most)
        began = time.perf_counter()
        found = linear(self._head, hidden, self._kernels, threads)
        self._head_crew.learn(rows, most, threads, time.perf_counter() - began)
        return found

    def _check(self, tokens: Tensor, positions: Tensor, kv: SlotRows) -> None:
        """Raise EngineError for types and shapes that would lead C astray; what the integers are, C checks itself."""
        config, rows = self.config, tokens.shape[0]
        cache = (config.layers, config.kv_heads, kv.keys.shape[2], config.head_dim)
        for name, tensor in (("keys", kv.keys), ("values", kv.values)):
            if tensor.shape != cache or not _is_plain(tensor, torch.float32):
                raise EngineError(
                    f"{name} {list(tensor.shape)} {tensor.dtype} must be contiguous float32 {list(cache)} on the CPU"
                )
        for name, ids in (("tokens", tokens), ("positions", positions)):
            if ids.shape != (rows,) or not _is_plain(ids, torch.int64):
                raise EngineError(f"{name} must be {rows} contiguous int64 on the CPU")
        for name, array in (("own", kv.own), ("first", kv.first), ("seen", kv.seen)):
            if array.dtype != np.int64 or array.shape != (rows,) or not array.flags.c_contiguous:
                raise EngineError(f"{name} must be contiguous int64 of shape {(rows,)}")
        if kv.slots.dtype != np.int32 or kv.slots.ndim != 1 or not kv.slots.flags.c_contiguous:
            raise EngineError(f"slots must be contiguous int32 of shape {(kv.slots.size,)}")
        if not 1 <= kv.longest <= kv.slots.size:
            raise EngineError(f"longest = {kv.longest} must be 1 to {kv.slots.size}, the slots of all lists")

    def _refuse(self, tokens: Tensor, positions: Tensor, kv: SlotRows) -> NoReturn:
        """Say which integers C refused."""
        known = (self.packed if self._entry is None else self._entry).embedding.outputs
        within("tokens", tokens.numpy(), 0, known)
        within("positions", positions.numpy(), 0, self.config.context)
        within("own", kv.own, 0, kv.keys.shape[2])
        within("slots", kv.slots, 0, kv.keys.shape[2])
        within("seen", kv.seen, 1, kv.slots.size + 1)
        within("first", kv.first, 0, kv.slots.size)
        within("first + seen", kv.first + kv.seen, 1, kv.slots.size + 1)
        raise EngineError(f"a row sees {kv.seen.max()} slots, more than longest = {kv.longest}")

    def _build(self) -> CModel:
        config, packed = self.config, self.packed
        layers = (CLayer * config.layers)(*(_layer(layer) for layer in packed.layers))
        angles = torch.arange(config.context, dtype=torch.float32)[:, None] * rope_frequencies(config)
        entry = self._entry and _entry(self._entry)
        self._kept += [entry, layers, angles.cos(), angles.sin()]
        return CModel(
            config.hidden_size, config.layers, config.heads, config.kv_heads, config.head_dim, config.intermediate,
            config.rms_eps, self._kernels, layers, _pointer(packed.norm), packed.head.c(), packed.embedding.c(),
            *(table.data_ptr() for table in self._kept[-2:]), None if entry is None else pointer(entry),
        )  # fmt: skip


def _entry(entry: PackedEntry) -> CEntry:
    return CEntry(entry.weights.c(), entry.embedding.c(), _pointer(entry.embed_norm), _pointer(entry.input_norm))


def _layer(layer: PackedLayer) -> CLayer:
    return CLayer(*(matrix.c() for matrix in layer.matrices), *map(_pointer, layer.norms))


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else int(tensor.data_ptr())


def linear(weights: Packed, x: Tensor, kernels: int, threads: int | None = None) -> Tensor:
    """[R, outputs] float32 of x [R, inputs] float32: one product of the native path, rows quantised one by one."""
    x = x.contiguous()
    if x.dim() != 2 or x.shape[1] != weights.inputs or not _is_plain(x, torch.float32):
        raise EngineError(f"x {list(x.shape)} {x.dtype} must be float32 [rows, {weights.inputs}] on the CPU")
    rows, lib = x.shape[0], library()
    out = torch.empty(rows, weights.scale.shape[0], dtype=torch.float32, device="cpu")
    if rows:
        matrix = byref(weights.c())
        with scratch(lib.native_linear_space(matrix, rows)) as space:
            lib.native_linear(matrix, kernels, x.data_ptr(), rows, threads or torch.get_num_threads(), out.data_ptr(), space)
    return out[:, : weights.outputs]


def refusal(config: ModelConfig, device: torch.device, dtype: torch.dtype, bits: int = 8) -> str | None:
    """Why the native path cannot run a model of this shape with weights of so many bits, None where it can."""
    if device.type != "cpu":
        return f"it is on {device}, the kernels run on the CPU"
    if dtype != torch.float32:
        return f"its weights are {dtype}, the kernels are packed from float32"
    for name, unit in (("hidden_size", LANES), ("head_dim", LANES), ("intermediate", TILE // 2)):
        if getattr(config, name) % unit:
            return f"{name} = {getattr(config, name)} is no multiple of {unit}"
    inputs = {
        "hidden_size": config.hidden_size,
        "heads x head_dim": config.heads * config.head_dim,
        "intermediate": config.intermediate,
    }
    for name, width in inputs.items():
        if bits == 4 and width % SPAN:
            return f"{name} = {width} is no multiple of {SPAN}, which share a scale at 4 bits"
    if config.context * config.head_dim // 2 > _ANGLES:
        return f"a context of {config.context} positions x head_dim {config.head_dim} exceeds its rotation table"
    return None


def _is_plain(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether C may read a tensor where it lies."""
    return tensor.dtype == dtype and tensor.is_contiguous() and tensor.device.type == "cpu" and not tensor.is_neg()


def within(name: str, array: NDArray[Any], least: int, stop: int) -> None:
    if array.size and not (least <= int(array.min()) and int(array.max()) < stop):
        raise EngineError(f"{name} runs from {array.min()} to {array.max()}: allowed is {least} to {stop - 1}")
