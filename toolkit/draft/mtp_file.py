"""MtpFile: an MtpHead as a folder, head.safetensors (float16) and card.json.

In: a folder and the target's shape, or a head and a card.   Out: the head, or the folder.
Knows nothing about: training, other layouts (layouts.py).
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from toolkit.draft.card import CARD, WEIGHTS, Card
from toolkit.draft.mtp_head import MtpHead, head_config
from toolkit.draft.tensors import check_ids, read_tensors, shapes_in
from toolkit.errors import InputError
from toolkit.model.config import ModelConfig
from toolkit.model.decoder import Block, Linear

_NORMS = ("embed_norm", "hidden_norm", "attention_norm", "norm")  # those that a head may lack


def save_mtp(folder: Path, head: MtpHead, card: Card) -> None:
    """Write the weights, then the card: a folder with a card is whole."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / CARD).unlink(missing_ok=True)
    tensors = {name: tensor.detach().to(torch.float16).contiguous() for name, tensor in weights_of(head).items()}
    tensors["ids"] = head.ids.to(torch.int32)
    save_file(tensors, folder / WEIGHTS)
    card.write(folder)


def load_mtp(folder: Path, target: ModelConfig, vocab_size: int) -> MtpHead:
    """Read a head for a target of that shape. InputError for tensors that are not what it needs."""
    path = folder / WEIGHTS
    found = shapes_in(path)
    D, heads, kv_heads, width = target.hidden_size, target.heads, target.kv_heads, target.head_dim
    vocab = found.get("ids", (0,))[0]
    inner = found.get("down", (0, 0))[-1]
    if not 1 <= vocab <= vocab_size or not 1 <= inner <= 64 * D:
        raise InputError(f"{path}: a draft vocabulary of {vocab} or a width of {inner} is not allowed")
    wanted: dict[str, tuple[int, ...]] = {
        "fc": (D, 2 * D), "fc_bias": (D,), "qkv": ((heads + 2 * kv_heads) * width, D), "o": (D, heads * width),
        "mlp_norm": (D,), "gate_up": (2 * inner, D), "down": (D, inner), "ids": (vocab,),
    }  # fmt: skip
    tensors = read_tensors(path, wanted | {name: (D,) for name in _NORMS if name in found})
    check_ids(path, tensors["ids"], vocab_size)
    return assemble(head_config(target, vocab, inner), tensors)


def assemble(config: ModelConfig, tensors: dict[str, Tensor]) -> MtpHead:
    """A head of named tensors, as `weights_of` names them, and `ids`."""
    block = Block(
        tensors.get("attention_norm"),
        Linear(tensors["qkv"]),
        Linear(tensors["o"]),
        tensors["mlp_norm"],
        Linear(tensors["gate_up"]),
        Linear(tensors["down"]),
    )
    norms = {name: tensors.get(name) for name in ("embed_norm", "hidden_norm", "norm")}
    return MtpHead(config, tensors["fc"], tensors["fc_bias"], block, tensors["ids"], **norms)


def weights_of(head: MtpHead) -> dict[str, Tensor]:
    """Every weight by its name in the file; norms that the head lacks are left out."""
    block = head.block
    named: dict[str, Tensor | None] = {
        "fc": head.fc, "fc_bias": head.fc_bias, "qkv": block.qkv.weight, "o": block.o.weight, "mlp_norm": block.mlp_norm,
        "gate_up": block.gate_up.weight, "down": block.down.weight, "attention_norm": block.attention_norm,
        "embed_norm": head.embed_norm, "hidden_norm": head.hidden_norm, "norm": head.norm,
    }  # fmt: skip
    return {name: tensor for name, tensor in named.items() if tensor is not None}
