"""Safetensors header: name, dtype, shape and byte range of every tensor of a file, read without torch.

In: a path.   Out: TensorEntry records.
Knows nothing about: configs, what tensors mean.
Invariants: every byte range lies in the file and no header larger than the format allows is parsed.
Source: the safetensors format (8-byte length, JSON header, raw bytes).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.errors import InputError

_MOST_HEADER = 100_000_000  # bytes, the limit of the format itself


@dataclass(frozen=True, slots=True, order=True)
class TensorEntry:
    """A tensor in a file: bytes start to end."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    start: int
    end: int


def tensor_entries(path: Path) -> list[TensorEntry]:
    """All tensors of a safetensors file. InputError where it is damaged."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length <= min(size, _MOST_HEADER) else None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a readable safetensors file: {error}") from error
    if not isinstance(header, dict):
        raise InputError(f"{path} is not a readable safetensors file: its header does not fit the file")
    return [_entry(path, name, entry, 8 + length, size) for name, entry in header.items() if name != "__metadata__"]


def _entry(path: Path, name: str, entry: Any, base: int, size: int) -> TensorEntry:
    try:
        start, end = (base + int(offset) for offset in entry["data_offsets"])
        if not base <= start <= end <= size:
            raise ValueError(f"bytes {start} to {end} of {size}")
        return TensorEntry(name, str(entry["dtype"]), tuple(int(dim) for dim in entry["shape"]), path, start, end)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: tensor {name[:80]!r} is damaged: {error}") from error
