"""Finite: whether every weight of a checkpoint is a number, read off its files without torch.

In: the tensors of safetensors files.   Out: nothing, or an error with the tensor's name.
Knows nothing about: configs, what tensors mean.
Invariants: at most CHUNK bytes are looked at together, so that memory stays small; a type that is no IEEE float is refused by name.
Source: IEEE 754: a float is NaN or infinite exactly where all bits of its exponent are set.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from toolkit.errors import InputError, UnsupportedError
from toolkit.model.safetensors_header import TensorEntry

CHUNK = 1 << 24
# safetensors' name of a type -> (unsigned integers of its width, mask of its exponent)
EXPONENTS = {
    "F64": ("<u8", 0x7FF0 << 48),
    "F32": ("<u4", 0x7F80 << 16),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
}


def check_finite(entries: Iterable[TensorEntry]) -> None:
    """InputError for a tensor that holds NaN or infinity, UnsupportedError for one that is stored as no plain float."""
    for entry in entries:
        if entry.dtype not in EXPONENTS:
            raise UnsupportedError(
                f"{entry.path}: tensor {entry.name} is stored as {entry.dtype[:20]}: known are {', '.join(EXPONENTS)}",
                hint="quantised checkpoints are not implemented",
            )
        kind, exponent = EXPONENTS[entry.dtype]
        if entry.end - entry.start != math.prod(entry.shape) * np.dtype(kind).itemsize:
            raise InputError(f"{entry.path}: tensor {entry.name} has {entry.end - entry.start} bytes, which its shape does not")
        with entry.path.open("rb") as file:
            file.seek(entry.start)
            for start in range(entry.start, entry.end, CHUNK):
                bits = np.frombuffer(file.read(min(CHUNK, entry.end - start)), dtype=kind)
                if ((bits & exponent) == exponent).any():
                    raise InputError(f"{entry.path}: tensor {entry.name} holds NaN or infinity")
