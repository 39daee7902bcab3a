"""Batches: sequences of shards, side by side and padded, as heads are trained on them.

In: shards.   Out: Batches of sequences of similar length, in an order that depends on the seed only.
Knows nothing about: heads, losses.
Invariants: every sequence of the training part comes once an epoch; sequences with task % HELD == 0 never do, they are the held-out part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from toolkit.contracts import Json
from toolkit.draft.tensors import shapes_in
from toolkit.errors import InputError, UsageError
from toolkit.train.shards import read_about, read_shard, shard_paths

LIKELIEST = 8  # K: of the tokens that a shard tells, those that a head is trained on
HELD = 32  # one sequence in so many is held out
_WANTED = ("tokens", "bounds", "reply", "last", "hidden", "top_ids", "top_logits", "lse")


@dataclass(frozen=True, slots=True)
class Batch:
    """B sequences padded to T tokens.

    tokens [B, T + 1] int64 (a sequence's last one was never fed); hidden [B, T, D]; active [B, T]: a token of the reply was
    predicted here; top_ids [B, T, K] int64 and probs [B, T, K]: the likeliest next tokens, zeros where not active.
    """

    tokens: Tensor
    lengths: Tensor
    hidden: Tensor
    active: Tensor
    top_ids: Tensor
    probs: Tensor


@dataclass(slots=True)
class Shard:
    """One shard in memory."""

    tasks: list[int]
    tensors: dict[str, Tensor]

    def batch(self, members: Sequence[int]) -> Batch:
        """Those sequences side by side."""
        held = self.tensors
        bounds, reply = held["bounds"], held["reply"]
        lengths = (bounds[1:] - bounds[:-1])[list(members)]
        B, T, D = len(members), int(lengths.max()), held["hidden"].shape[1]
        tokens = torch.zeros(B, T + 1, dtype=torch.int64)
        hidden = torch.zeros(B, T, D)
        active = torch.zeros(B, T, dtype=torch.bool)
        top_ids = torch.zeros(B, T, LIKELIEST, dtype=torch.int64)
        probs = torch.zeros(B, T, LIKELIEST)
        rows = torch.cat((torch.zeros(1, dtype=torch.int64), (bounds[1:] - bounds[:-1] - reply + 1).cumsum(0)))
        for i, s in enumerate(members):
            start, n, first, row = int(bounds[s]), int(lengths[i]), int(reply[s]) - 1, int(rows[s])
            count = n - first
            tokens[i, :n] = held["tokens"][start : start + n]
            tokens[i, n] = held["last"][s]
            hidden[i, :n] = held["hidden"][start : start + n]
            active[i, first:n] = True
            rows_ = slice(row, row + count)
            top_ids[i, first:n] = held["top_ids"][rows_, :LIKELIEST]
            probs[i, first:n] = (held["top_logits"][rows_, :LIKELIEST].float() - held["lse"][rows_, None]).exp()
        return Batch(tokens, lengths, hidden, active, top_ids, probs)


def load(path: Path) -> Shard:
    """A shard without the rows of inner layers. InputError where its tensors do not belong together."""
    shard = Shard(list(read_about(path)["tasks"]), read_shard(path, _WANTED))
    if not _fits(shard.tensors, len(shard.tasks)):
        raise InputError(
            f"{path} is a damaged shard: its tensors do not fit together", hint="make it again: toolkit train data"
        )
    return shard


def _fits(held: dict[str, Tensor], count: int) -> bool:
    """Whether sizes and places are those of `count` sequences."""
    whole = [held[name] for name in ("tokens", "bounds", "reply", "last", "top_ids")]
    shapes = [held[name].dim() for name in _WANTED]
    if any(each.is_floating_point() or each.is_complex() for each in whole) or shapes != [1, 1, 1, 1, 2, 2, 2, 1]:
        return False
    bounds, reply, fed, rows = held["bounds"], held["reply"], len(held["tokens"]), len(held["lse"])
    if not (len(bounds) - 1 == len(reply) == len(held["last"]) == count > 0 and len(held["hidden"]) == fed):
        return False
    lengths = bounds[1:] - bounds[:-1]
    told = lengths - reply + 1
    return (
        int(bounds[0]) == 0 and int(bounds[-1]) == fed and bool((lengths > 0).all())
        and bool(((reply > 0) & (told > 0)).all()) and int(told.sum()) == rows
        and held["top_ids"].shape == held["top_logits"].shape and len(held["top_ids"]) == rows
        and held["top_ids"].shape[1] >= LIKELIEST
    )  # fmt: skip


def training(folders: Sequence[Path], seed: int, epoch: int, size: int) -> Iterator[Batch]:
    """One epoch over all shards of those folders, mixed: batches of at most `size` padded tokens."""
    dice = torch.Generator().manual_seed(seed * 1000 + epoch)
    paths = _shards(folders)
    for place in torch.randperm(len(paths), generator=dice).tolist():
        shard = load(paths[place])
        kept = [s for s, task in enumerate(shard.tasks) if task % HELD]
        groups = list(_groups(shard, kept, size))
        for group in torch.randperm(len(groups), generator=dice).tolist():
            yield shard.batch(groups[group])


def held_out(folders: Sequence[Path], size: int, most: int) -> Iterator[Batch]:
    """The held-out sequences of the first shards, about `most` tokens; those of the first folder come first."""
    seen = 0
    for path in _shards(folders):
        shard = load(path)
        for group in _groups(shard, [s for s, task in enumerate(shard.tasks) if task % HELD == 0], size):
            batch = shard.batch(group)
            seen += int(batch.lengths.sum())
            yield batch
            if seen >= most:
                return


def _shards(folders: Sequence[Path]) -> list[Path]:
    return [path for folder in folders for path in shard_paths(folder)]


def _groups(shard: Shard, members: Sequence[int], size: int) -> Iterator[list[int]]:
    """Members of similar length, as many as fit."""
    bounds = shard.tensors["bounds"]
    lengths = (bounds[1:] - bounds[:-1]).tolist()
    group: list[int] = []
    for s in sorted(members, key=lambda s: lengths[s]):
        if group and (len(group) + 1) * lengths[s] > size:
            yield group
            group = []
        group.append(s)
    if group:
        yield group


@dataclass(frozen=True, slots=True)
class Summary:
    """What folders of data hold: reply tokens, tokens fed (prompts too), sequences; and the seeds that they were made with."""

    fingerprint: str
    seeds: list[int]
    shards: int
    sequences: int
    tokens: int
    fed: int

    def json(self) -> dict[str, Json]:
        """For a card."""
        return {name: getattr(self, name) for name in ("seeds", "shards", "sequences", "tokens")}

    def mark(self) -> dict[str, Json]:
        """What a checkpoint of a training is bound to."""
        return {"base": self.fingerprint, "seeds": list(self.seeds), "shards": self.shards}


def summary(folders: Sequence[Path], base: str) -> Summary:
    """UsageError for a folder without data, one given twice, or one with data of another base."""
    for number, folder in enumerate(folders):
        if any(folder.samefile(other) for other in folders[:number]):
            raise UsageError(f"{folder} is given twice: its replies would count double", hint="give every folder of data once")
        if not shard_paths(folder):
            raise UsageError(f"{folder} holds no training data", hint=f"toolkit train data --base BASE --out {folder}")
    paths = _shards(folders)
    recipes = [read_about(path)["recipe"] for path in paths]
    for path, recipe in zip(paths, recipes, strict=True):
        if recipe["base"] != base:
            raise UsageError(
                f"{path} was made by the base {recipe['base'][:12]}, not by {base[:12]}",
                hint="toolkit train data makes data for a base",
            )
    shapes = [shapes_in(path) for path in paths]
    sequences, tokens, fed = (sum(shape[name][0] for shape in shapes) for name in ("reply", "lse", "tokens"))
    return Summary(base, list(dict.fromkeys(recipe["seed"] for recipe in recipes)), len(paths), sequences, tokens, fed)
