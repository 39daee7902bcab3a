"""Fingerprint: one sha256 that names a model: its weights, its shape and its tokenizer.

In: a checkpoint folder.   Out: 64 hex digits.
Knows nothing about: torch, what the weights mean.
Invariants: equal for equal tensors however they are spread over files; a changed byte, dtype, shape, name or tokenizer changes
it; the cached value is used only while every file has the size and times it was computed from.
Source: the safetensors format.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
from dataclasses import asdict
from pathlib import Path

from toolkit.errors import InputError
from toolkit.model.layout import folder_entries, read_config, read_json, weight_files

CACHE = ".toolkit-fingerprint.json"
_NO_MEANING = ("version", "truncation", "padding")  # keys of tokenizer.json that do not decide ids


def fingerprint(folder: Path) -> str:
    """The folder's fingerprint, from its cache where nothing changed. InputError for damaged files."""
    stamps = _stamps(folder)
    cache = folder / CACHE
    with contextlib.suppress(InputError):
        known = read_json(cache)
        if known.get("files") == stamps and isinstance(known.get("fingerprint"), str):
            return str(known["fingerprint"])
    value = _compute(folder)
    if _stamps(folder) == stamps:
        _write(cache, {"files": stamps, "fingerprint": value})
    return value


def _compute(folder: Path) -> str:
    digest = hashlib.sha256()
    shape = asdict(read_config(folder))
    del shape["file_dtype"]  # the tensors' own dtypes are hashed
    digest.update(json.dumps(shape, sort_keys=True).encode())
    tokenizer = folder / "tokenizer.json"
    if tokenizer.exists():
        parts = {key: value for key, value in read_json(tokenizer).items() if key not in _NO_MEANING}
        digest.update(json.dumps(parts, sort_keys=True).encode())
    for entry in sorted(folder_entries(folder)):
        digest.update(json.dumps([entry.name, entry.dtype, entry.shape, entry.end - entry.start]).encode())
        with (
            entry.path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            memoryview(data) as view,
            view[entry.start : entry.end] as part,
        ):
            digest.update(part)
    return digest.hexdigest()


def _stamps(folder: Path) -> dict[str, list[int]]:
    files = [folder / "config.json", folder / "tokenizer.json", *weight_files(folder)]
    index = folder / "model.safetensors.index.json"
    stats = {path.name: path.stat() for path in [*files, index] if path.exists()}
    return {name: [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns] for name, stat in stats.items()}


def _write(path: Path, data: object) -> None:
    """Best effort: a folder that cannot be written is hashed again the next time."""
    spare = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        spare.write_text(json.dumps(data), encoding="utf-8")
        spare.replace(path)
