"""Library: the compiled part, found, loaded once and described to ctypes.

In: nothing.   Out: functions of native.h, the kernel sets that this processor can run.
Knows nothing about: models, tensors.
Invariants: torch is loaded first, so that both share one OpenMP runtime; a library of another version is refused.
Source: native.h.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_float, c_int, c_int32, c_int64, c_void_p
from functools import cache
from importlib.util import find_spec

import torch  # noqa: F401 - its libgomp must be the first and only one

from toolkit.errors import UnsupportedError, UsageError

VERSION = 6
TILE, LANES, PAD, LIMIT, STRETCH, SPAN = 32, 8, 64, 8191, 2048, 32  # as in native.h
SPAN_BYTES = 4 * TILE + TILE * SPAN // 2


class CLinear(Structure):
    """`linear` of native.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("tiles", "scale", "bias")),
        *((name, c_int64) for name in ("outputs", "inputs")),
        ("bits", c_int32),
    )


class CLayer(Structure):
    """`layer` of native.h."""

    _fields_ = (
        *((name, CLinear) for name in ("qkv", "o", "gate_up", "down")),
        *((name, c_void_p) for name in ("attention_norm", "mlp_norm", "q_norm", "k_norm")),
    )


class CEntry(Structure):
    """`draft_entry` of native.h."""

    _fields_ = (("weights", CLinear), ("embedding", CLinear), ("embed_norm", c_void_p), ("input_norm", c_void_p))


class CModel(Structure):
    """`model` of native.h."""

    _fields_ = (
        *((name, c_int64) for name in ("hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate")),
        ("epsilon", c_float),
        ("kernels", c_int32),
        ("layer", POINTER(CLayer)),
        ("norm", c_void_p),
        ("head", CLinear),
        ("embedding", CLinear),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("entry", POINTER(CEntry)),
    )


class CPass(Structure):
    """`pass` of native.h."""

    _fields_ = (
        *((name, c_int64) for name in ("rows", "threads", "slots_all", "longest")),
        *((name, c_void_p) for name in ("tokens", "positions", "own", "first", "seen", "slots")),
        *((name, c_void_p) for name in ("keys", "values", "hidden", "space", "inputs", "depths")),
        ("depths_all", c_int64),
        ("residuals", c_void_p),
        ("context", c_int64),
        ("listed", c_int64),
    )


class CLine(Structure):
    """`line` of native.h."""

    _fields_ = (
        *((name, c_int64) for name in ("rows", "threads", "slots_all", "context", "end", "place")),
        *((name, c_void_p) for name in ("tokens", "slots", "keys", "values", "hidden", "inputs", "space")),
    )


class CGuesses(Structure):
    """`guesses` of native.h."""

    _fields_ = (
        *((name, c_int64) for name in ("most", "count")),
        *((name, c_float) for name in ("least", "by")),
        ("tokens", c_void_p),
        ("made", c_int64),
        *((name, c_void_p) for name in ("norms", "ids", "values")),
    )


_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "native_version": (c_int, ()),
    "native_kernels": (c_int, ()),
    "native_kernel_name": (c_char_p, (c_int,)),
    "native_kernel_usable": (c_int, (c_int,)),
    "native_space": (c_int64, (POINTER(CModel), c_int64, c_int64, c_int64)),
    "native_forward": (c_int, (POINTER(CModel), POINTER(CPass))),
    "native_linear_space": (c_int64, (POINTER(CLinear), c_int64)),
    "native_linear": (None, (POINTER(CLinear), c_int, c_void_p, c_int64, c_int64, c_void_p, c_void_p)),
    "native_pack": (None, (c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p)),
    "native_best": (None, (c_int, *(c_void_p, c_int64, c_int64) * 2, *(c_void_p,) * 4)),
    "native_guess_space": (c_int64, (POINTER(CModel), POINTER(CLine), c_int64)),
    "native_guess": (c_int, (POINTER(CModel), POINTER(CLine), POINTER(CGuesses))),
    "native_likeliest_space": (c_int64, (POINTER(CLinear), c_int64)),
    "native_likeliest": (None, (POINTER(CLinear), c_int, c_void_p, c_int64, c_int64, c_int64, *(c_void_p,) * 4)),
    "native_trim": (None, ()),
    "native_norm": (None, (c_int, c_void_p, c_void_p, c_int64, c_float, c_void_p)),
    "native_quantise": (c_float, (c_int, c_void_p, c_int64, c_void_p)),
    "native_attend": (None, (c_int, c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_void_p)),
}


def missing() -> str | None:
    """Why the native path cannot be used here, None where it can."""
    try:
        library()
    except UnsupportedError as error:
        return str(error)
    return None


@cache
def library() -> ctypes.CDLL:
    """The compiled part. UnsupportedError where it was not built, or not from these sources."""
    spec = find_spec("toolkit.model.native._native")
    if spec is None or spec.origin is None:
        raise UnsupportedError(
            "the native CPU path was not compiled when sgl-toolkit was installed",
            hint="install gcc (with OpenMP) and reinstall sgl-toolkit",
        )
    try:
        loaded = ctypes.CDLL(spec.origin)
        version = loaded.native_version()
    except (OSError, AttributeError) as error:
        raise UnsupportedError(f"{spec.origin} cannot be loaded: {error}", hint="reinstall sgl-toolkit") from error
    if version != VERSION:
        raise UnsupportedError(f"{spec.origin} has version {version}, {VERSION} is needed", hint="reinstall sgl-toolkit")
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def trim() -> None:
    """Give memory that was freed back to the system: the float32 weights that were read to be packed."""
    library().native_trim()


@cache
def kernels() -> dict[str, int]:
    """Name -> index of the kernel sets that this processor can run, the fastest first; "portable" is always the last."""
    lib = library()
    usable = [index for index in range(lib.native_kernels()) if lib.native_kernel_usable(index)]
    return {lib.native_kernel_name(index).decode(): index for index in usable}


def kernel_index(name: str | None) -> int:
    """Index of a kernel set, None for the fastest. UsageError for one that is not there."""
    known = kernels()
    if name is not None and name not in known:
        raise UsageError(f"kernels = {name!r} is not allowed: this processor and build have {', '.join(known)}")
    return known[name] if name is not None else next(iter(known.values()))
