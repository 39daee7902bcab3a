"""Small shards and batches out of noise, as the base's replies would make them."""

from __future__ import annotations

from pathlib import Path

import torch

from toolkit.train.shards import TOP, Line, write_shard

WIDTH, VOCAB = 32, 261


def line(task: int, length: int, reply: int, seed: int = 0) -> Line:
    """A sequence of `length` tokens, the last never fed, whose reply begins at `reply`."""
    dice = torch.Generator().manual_seed(1000 * seed + task)
    tokens = torch.randint(0, VOCAB, (length,), generator=dice).tolist()
    made = Line(task, tokens, reply)
    made.hidden = [torch.randn(length - 1, WIDTH, generator=dice)]
    made.depths = [torch.randn(3, length - 1, WIDTH, generator=dice)]
    for place in range(reply - 1, length - 1):
        ids = torch.randperm(VOCAB, generator=dice)[:TOP]
        ids = torch.cat((torch.tensor([tokens[place + 1]]), ids[ids != tokens[place + 1]]))[:TOP]
        logits = torch.randn(TOP, generator=dice).sort(descending=True).values
        made.top.append((ids, logits, logits.logsumexp(0) + 0.3))
    return made


def folder_of(folder: Path, lines: list[Line], base: str = "base", shards: int = 1, seed: int = 0) -> Path:
    """Shards of those lines."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe = {"base": base, "seed": seed, "depths": [0, 1, 2], "version": 1}
    size = -(-len(lines) // shards)
    for number in range(shards):
        write_shard(folder, number, lines[number * size : (number + 1) * size], [], recipe)
    return folder
