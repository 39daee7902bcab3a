"""MedusaFile: a MedusaHead as a folder, head.safetensors (float16) and card.json.

In: a folder and the target's shape, or a head and a card.   Out: the head, or the folder.
Knows nothing about: training, other layouts (layouts.py).
"""

from __future__ import annotations

from pathlib import Path

import torch

from toolkit.draft.card import CARD, WEIGHTS, Card
from toolkit.draft.medusa_head import MedusaHead
from toolkit.draft.tensors import check_ids, read_tensors, shapes_in
from toolkit.errors import InputError
from toolkit.model.config import ModelConfig

MOST_HEADS, MOST_BLOCKS = 16, 4


def save_medusa(folder: Path, head: MedusaHead, card: Card) -> None:
    """Write the weights, then the card: a folder with a card is whole."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / CARD).unlink(missing_ok=True)
    tensors = {"weight": head.weight, "bias": head.bias} | ({} if head.outputs is None else {"outputs": head.outputs})
    half = {name: tensor.detach().to(torch.float16).contiguous() for name, tensor in tensors.items()}
    save_file(half | {"ids": head.ids.to(torch.int32)}, folder / WEIGHTS)
    card.write(folder)


def load_medusa(folder: Path, target: ModelConfig, vocab_size: int) -> MedusaHead:
    """Read heads for a target of that shape. InputError for tensors that are not what they need."""
    path, hidden_size = folder / WEIGHTS, target.hidden_size
    found = shapes_in(path)
    heads, blocks = (*found.get("weight", ()), 0, 0)[:2]
    vocab = found.get("ids", (0,))[0]
    if not (1 <= heads <= MOST_HEADS and 1 <= blocks <= MOST_BLOCKS and 1 <= vocab <= vocab_size):
        raise InputError(f"{path}: {heads} heads of {blocks} blocks over {vocab} tokens are not allowed")
    wanted: dict[str, tuple[int, ...]] = {
        "weight": (heads, blocks, hidden_size, hidden_size), "bias": (heads, blocks, hidden_size), "ids": (vocab,),
    }  # fmt: skip
    tensors = read_tensors(path, wanted | ({"outputs": (heads, vocab, hidden_size)} if "outputs" in found else {}))
    check_ids(path, tensors["ids"], vocab_size)
    return MedusaHead(tensors["weight"], tensors["bias"], tensors["ids"], tensors.get("outputs"))
