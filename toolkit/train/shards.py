"""Shards: training data as safetensors files that appear whole or not at all.

A shard holds S sequences, T tokens in all and R of them that are followed by a token of a reply:

    tokens   [T] int32    what the model was fed, sequence after sequence
    bounds   [S + 1] int64   sequence s is tokens[bounds[s] : bounds[s + 1]]
    reply    [S] int64    where in the sequence its reply begins
    last     [S] int32    the last token of the sequence, which was never fed
    hidden   [T, D] float16   the base's hidden rows after its final norm: what its head reads
    depths   [K, T, D] float16   residual rows before K inner layers
    top_ids, top_logits   [R, 16] int32, float16   the likeliest next tokens, in falling order
    lse      [R] float32  log-sum-exp of all logits: log p = logit - lse

Row r of the last three belongs to the r-th position p of the shard with p >= reply - 1 in its sequence.
Knows nothing about: models, how sequences came about. Metadata of a shard is JSON: recipe, tasks done, tasks refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from toolkit.contracts import Json
from toolkit.errors import InputError

TOP = 16
_KEY = "toolkit-train-data"


@dataclass(slots=True)
class Line:
    """One finished sequence: its tokens, of which all but the last were fed, and what the model told about each."""

    task: int
    tokens: list[int]
    reply: int
    hidden: list[Tensor] = field(default_factory=list)  # pieces [t, D]
    depths: list[Tensor] = field(default_factory=list)  # pieces [K, t, D]
    top: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)  # ids [16], logits [16], lse [], one a reply token


def write_shard(folder: Path, number: int, lines: Sequence[Line], refused: Sequence[int], recipe: Mapping[str, Json]) -> Path:
    """Write one shard; it appears under its name only when it is whole."""
    from safetensors.torch import save_file

    lengths = torch.tensor([len(line.tokens) - 1 for line in lines])
    top = [entry for line in lines for entry in line.top]
    tensors = {
        "tokens": torch.tensor([token for line in lines for token in line.tokens[:-1]], dtype=torch.int32),
        "bounds": torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0))),
        "reply": torch.tensor([line.reply for line in lines]),
        "last": torch.tensor([line.tokens[-1] for line in lines], dtype=torch.int32),
        "hidden": torch.cat([piece for line in lines for piece in line.hidden]).to(torch.float16),
        "depths": torch.cat([piece for line in lines for piece in line.depths], 1).to(torch.float16),
        "top_ids": torch.stack([ids for ids, _, _ in top]).to(torch.int32),
        "top_logits": torch.stack([logits for _, logits, _ in top]).to(torch.float16),
        "lse": torch.stack([lse for _, _, lse in top]).to(torch.float32),
    }
    about = {"recipe": dict(recipe), "tasks": [line.task for line in lines], "refused": list(refused)}
    path = folder / f"shard-{number:05}.safetensors"
    spare = path.with_suffix(".partial")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, spare, {_KEY: json.dumps(about)})
    spare.replace(path)
    return path


def shard_paths(folder: Path) -> list[Path]:
    """The shards of a folder in order."""
    return sorted(folder.glob("shard-*.safetensors"))


def read_about(path: Path) -> dict[str, Json]:
    """recipe, tasks and refused of a shard. InputError for a file that is none."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})[_KEY])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise InputError(f"{path} is no shard of training data: {error}", hint="toolkit train data writes them") from error
    if not isinstance(about, dict) or not {"recipe", "tasks", "refused"} <= about.keys():
        raise InputError(f"{path} is no shard of training data: its metadata lacks fields")
    numbers = [about["tasks"], about["refused"]]
    if not all(isinstance(each, list) and all(type(task) is int for task in each) for each in numbers):
        raise InputError(f"{path} is no shard of training data: its tasks are no numbers")
    recipe = about["recipe"]
    if not isinstance(recipe, dict) or type(recipe.get("base")) is not str or type(recipe.get("seed")) is not int:
        raise InputError(f"{path} is no shard of training data: its recipe names no base and seed")
    return about


def read_shard(path: Path, names: Sequence[str]) -> dict[str, Tensor]:
    """The named tensors of a shard."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} is no shard of training data: {error}", hint="toolkit train data writes them") from error
