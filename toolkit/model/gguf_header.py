"""GGUF header check: every count and length fits the file, before a parser trusts them.

In: a path.   Out: nothing, or InputError.
Knows nothing about: what keys mean, tensor data.
Invariants: work is bounded by the header's own bytes; nothing is allocated by a number read from the file.
Source: the GGUF specification (ggml/docs/gguf.md), versions 2 and 3, little endian.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from toolkit.errors import InputError, UnsupportedError

_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of the scalar value types
_STRING, _ARRAY = 8, 9
_MOST_DIMENSIONS = 4
_MOST_NESTING = 4  # arrays in arrays; real files have none
_MOST_TENSORS = 1 << 16
_MOST_FIELDS = 1 << 16


class _Walk:
    """A cursor over the mapped file that refuses to leave it."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.at = data, path, 0

    def skip(self, count: int, width: int = 1) -> None:
        if count * width > len(self.data) - self.at:
            raise InputError(f"{self.path} is truncated or damaged: {count} x {width} bytes at offset {self.at} do not fit")
        self.at += count * width

    def number(self, code: str) -> int:
        at = self.at
        self.skip(struct.calcsize(code))
        return int(struct.unpack_from("<" + code, self.data, at)[0])

    def value(self, kind: int, depth: int = 0) -> None:
        if kind in _WIDTHS:
            self.skip(1, _WIDTHS[kind])
        elif kind == _STRING:
            self.skip(self.number("Q"))
        elif kind == _ARRAY and depth < _MOST_NESTING:
            inner, count = self.number("I"), self.number("Q")
            if inner in _WIDTHS:
                self.skip(count, _WIDTHS[inner])
                return
            if count * 8 > len(self.data) - self.at:  # a string or an array takes 8 bytes at least
                raise InputError(f"{self.path} is damaged: an array of {count} entries at offset {self.at} does not fit")
            for _ in range(count):
                self.value(inner, depth + 1)
        else:
            raise InputError(f"{self.path} is damaged: value type {kind} at offset {self.at} is unknown or nested too deep")


def check_header(path: Path) -> None:
    """Walk the whole header. InputError where it is malformed, UnsupportedError for another version or byte order."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _check(_Walk(data, path))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as GGUF: {error}") from error


def _check(walk: _Walk) -> None:
    walk.skip(4)
    if walk.data[:4] != b"GGUF":
        raise InputError(f"{walk.path} is no GGUF file: it starts with {walk.data[:4]!r}")
    version = walk.number("I")
    if version not in (2, 3):
        raise UnsupportedError(f"{walk.path}: GGUF version {version} is not implemented: known are 2 and 3, little endian")
    tensors, fields = walk.number("Q"), walk.number("Q")
    if tensors > _MOST_TENSORS or fields > _MOST_FIELDS:
        raise InputError(f"{walk.path} is damaged: it claims {tensors} tensors and {fields} fields")
    for _ in range(fields):
        walk.value(_STRING)
        walk.value(walk.number("I"))
    for _ in range(tensors):
        walk.value(_STRING)
        dimensions = walk.number("I")
        if dimensions > _MOST_DIMENSIONS:
            raise InputError(f"{walk.path} is damaged: a tensor of {dimensions} dimensions at offset {walk.at}")
        elements = 1
        for _ in range(dimensions):
            elements *= walk.number("Q")
        if elements > 16 * len(walk.data):  # no format stores a weight in less than half a bit
            raise InputError(f"{walk.path} is truncated or damaged: a tensor of {elements} weights does not fit the file")
        walk.skip(4)  # type
        walk.skip(8)  # offset
