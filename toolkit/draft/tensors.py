"""Tensors: reading the safetensors file of a head, every tensor checked before it is used.

In: a file, and the shape that each tensor must have.   Out: float32 tensors on the CPU.
Knows nothing about: what they mean.
Invariants: nothing missing, nothing left over, finite numbers; sizes are checked before anything is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from toolkit.errors import InputError

Shape = tuple[int, ...]
IDS = "ids"  # the one tensor of a head that holds no weights: the draft vocabulary


def shapes_in(path: Path) -> dict[str, Shape]:
    """Name -> shape. InputError for a file that is none."""
    from safetensors import SafetensorError, safe_open

    _regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} is not a readable safetensors file: {error}") from error


def read_tensors(path: Path, wanted: Mapping[str, Shape]) -> dict[str, Tensor]:
    """Exactly the wanted tensors: `ids` as int64, all others as float32. InputError for anything else."""
    from safetensors import safe_open

    found = shapes_in(path)
    for what, names in (("lacks", wanted.keys() - found.keys()), ("has unknown", found.keys() - wanted.keys())):
        if names:
            raise InputError(f"{path} {what} tensors: {', '.join(sorted(names))[:200]}")
    for name, shape in wanted.items():
        if found[name] != shape:
            raise InputError(f"{path}: {name} has shape {list(found[name])}, expected is {list(shape)}")
    tensors: dict[str, Tensor] = {}
    with safe_open(path, framework="pt") as file:
        for name in wanted:
            tensors[name] = _checked(path, name, file.get_tensor(name))
    return tensors


def read_some(path: Path, name: str, shape: Shape) -> Tensor:
    """One tensor of a file that holds others too, as float32. InputError for another shape or for what is no finite number."""
    from safetensors import SafetensorError, safe_open

    _regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: {name} cannot be read: {error}") from error
    if tuple(tensor.shape) != shape:
        raise InputError(f"{path}: {name} has shape {list(tensor.shape)}, expected is {list(shape)}")
    return _checked(path, name, tensor)


def check_ids(path: Path, ids: Tensor, vocab_size: int) -> None:
    """InputError unless ids are distinct tokens in rising order."""
    if not len(ids) or int(ids[0]) < 0 or int(ids[-1]) >= vocab_size or not bool((ids.diff() > 0).all()):
        raise InputError(f"{path}: ids are not distinct tokens of 0 .. {vocab_size - 1} in rising order")


def _regular(path: Path) -> None:
    """InputError for what is no file: opening a pipe would wait for ever."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a file")


def _checked(path: Path, name: str, tensor: Tensor) -> Tensor:
    if name == IDS:
        if tensor.dtype not in (torch.int32, torch.int64):
            raise InputError(f"{path}: {name} are {_dtype(tensor)}, expected are int32 or int64")
        return tensor.to(torch.int64)
    if not tensor.is_floating_point():
        raise InputError(f"{path}: {name} is {_dtype(tensor)}, expected are floating-point numbers")
    tensor = tensor.to(torch.float32)
    if not bool(torch.isfinite(tensor).all()):
        raise InputError(f"{path}: {name} holds NaN or infinity")
    return tensor


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
