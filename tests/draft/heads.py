"""Random heads for small targets, as folders that a source opens, and the plainest way to run one."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from toolkit.draft.card import Card
from toolkit.draft.contract import Target
from toolkit.draft.medusa_file import save_medusa
from toolkit.draft.medusa_head import MedusaHead
from toolkit.draft.mtp_file import assemble, save_mtp
from toolkit.draft.mtp_head import MtpHead, head_config
from toolkit.model.attention import FullAttention
from toolkit.model.config import ModelConfig

NORMS = ("attention_norm", "embed_norm", "hidden_norm", "norm")


@cache
def _root() -> Path:
    """A folder that goes when the tests end."""
    kept = tempfile.TemporaryDirectory(prefix="heads-")
    atexit.register(kept.cleanup)
    return Path(kept.name)


def random_mtp(config: ModelConfig, vocab: int, *, seed: int = 0, norms: Sequence[str] = (), gain: float = 2.0) -> MtpHead:
    """A head for a target of that shape with a draft vocabulary of half of `vocab`; weights are float16 numbers, as files hold them."""
    dice = torch.Generator().manual_seed(seed)
    D, F_ = config.hidden_size, 64
    width, heads, kv_heads = config.head_dim, config.heads, config.kv_heads
    ids = torch.randperm(vocab, generator=dice)[: vocab // 2].sort().values

    def take(*shape: int, spread: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=dice) * spread * shape[-1] ** -0.5).to(torch.float16).float()

    tensors = {
        "fc": take(D, 2 * D, spread=gain), "fc_bias": take(D), "qkv": take((heads + 2 * kv_heads) * width, D, spread=gain),
        "o": take(D, heads * width, spread=gain), "gate_up": take(2 * F_, D, spread=gain),
        "down": take(D, F_, spread=gain), "ids": ids,
    }  # fmt: skip
    tensors |= {name: (1 + take(D)).to(torch.float16).float() for name in ("mlp_norm", *norms)}
    return assemble(head_config(config, len(ids), F_), tensors)


@cache
def mtp_folder(name: str, target: Target) -> Path:
    """A random head for a target, saved."""
    folder = _root() / f"mtp-{name}"
    save_mtp(
        folder,
        random_mtp(target.decoder.config, target.vocab_size),
        Card(kind="mtp", base=name, fingerprint=target.fingerprint),
    )
    return folder


@cache
def medusa_folder(name: str, target: Target) -> Path:
    """Random heads for a target, saved."""
    folder, dice = _root() / f"medusa-{name}", torch.Generator().manual_seed(1)
    D, vocab = target.decoder.config.hidden_size, target.vocab_size
    weight = (torch.randn(4, 2, D, D, generator=dice) * D**-0.5).to(torch.float16).float()
    bias = (torch.randn(4, 2, D, generator=dice) * 0.2).to(torch.float16).float()
    ids = torch.randperm(vocab, generator=dice)[: vocab // 2].sort().values
    save_medusa(folder, MedusaHead(weight, bias, ids), Card(kind="medusa", base=name, fingerprint=target.fingerprint))
    return folder


def plain_features(
    head: MtpHead, embedding: Tensor, text: Sequence[int], rows: Tensor, start: int, drafted: Sequence[int]
) -> Tensor:
    """Features [n, D] of the places `start` .. : hidden rows are known up to len(rows), then the head feeds itself with `drafted`.

    No cache: the whole line is computed again for every drafted token.
    """
    layer = head.decoder(torch.zeros(head.config.vocab_size, head.config.hidden_size))
    features = list(rows)
    tokens = [*text[start + 1 : start + 1 + len(rows)], *drafted]
    while True:
        known = len(features)
        x = head.enter(F.embedding(torch.tensor(tokens[:known]), embedding), torch.stack(features))
        places = torch.arange(start, start + known)
        y = layer.features(torch.zeros(known, dtype=torch.long), places, FullAttention(), (), x)[0]
        if known == len(tokens):
            return y
        features.append(y[-1])
