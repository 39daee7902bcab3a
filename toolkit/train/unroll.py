"""Unroll: an MTP head over whole sequences, k steps deep, each step on what the step before gave.

Step 1 sees the base's features, step s at place p sees its own output of step s-1 at place p-1, as in drafting: its keys are
step 1's up to place p-s+1 and, on the diagonal behind, those of steps 2 .. s.
In: a head whose weights may want gradients, a Batch.   Out: for every step the output rows and the flat places they stand at.
Knows nothing about: losses, optimisers.
Invariants: what step s gives at p equals s steps of drafting from p-s+1 on (tests/train compares).
Source: training-time test of EAGLE-3 (2503.01840, section 3.2); departures: EAGLE-1's layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from toolkit.draft.mtp_head import MtpHead
from toolkit.model.config import ModelConfig
from toolkit.model.decoder import rope_frequencies
from toolkit.train.batches import Batch


@dataclass(frozen=True, slots=True)
class Step:
    """rows [A, D] at flat places [A] of [B * T]; row at p guesses what follows token p+1."""

    rows: Tensor
    places: Tensor


def unroll(head: MtpHead, embedding: Tensor, batch: Batch, steps: int) -> list[Step]:
    """Outputs of steps 1 .. `steps` wherever the reply gives them a label and their input exists."""
    B, T, D = batch.hidden.shape
    config = head.config
    eps = config.rms_eps
    H, G, W = config.heads, config.kv_heads, config.head_dim
    embeddings = F.embedding(batch.tokens[:, 1:], embedding)  # of token p + 1
    cos, sin = _rotation(config, T, batch.hidden)
    # A draft begins behind the first reply token: place p has token p+1 and, as label, what the base said there.
    start = batch.active & batch.active.roll(-1, 1)
    start[:, -1] = False
    causal = torch.ones(T, T, dtype=torch.bool, device=start.device).tril()
    found: list[Step] = []
    keys: list[Tensor] = []
    values: list[Tensor] = []
    features, live = batch.hidden, start
    for step in range(steps):
        if step:
            features = (
                torch.zeros_like(batch.hidden).view(-1, D).index_put((found[-1].places,), found[-1].rows.to(batch.hidden.dtype))
            )
            features = features.view(B, T, D).roll(1, 1)
            live = live.roll(1, 1) & start
            live[:, 0] = False
        places = live.reshape(-1).nonzero()[:, 0]
        if not len(places):
            break
        if step:  # rows that nothing looks at are left out
            x = head.enter(embeddings.view(-1, D)[places], features.view(-1, D)[places])
            qkv = torch.zeros(B * T, (H + 2 * G) * W, device=x.device).index_put(
                (places,), head.block.qkv(_rms(x, head.block.attention_norm, eps)).float()
            )
        else:
            x = head.enter(embeddings, features).view(B * T, D)
            qkv, x = head.block.qkv(_rms(x, head.block.attention_norm, eps)).float(), x[places]
        q, k, v = torch.split(qkv.view(B, T, H + 2 * G, W), [H, G, G], 2)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        keys.append(k)
        values.append(v)
        seen = _attend(q, keys, values, causal)
        y = x.float() + head.block.o(seen.reshape(B * T, -1)[places])
        gate, up = head.block.gate_up(_rms(y, head.block.mlp_norm, eps)).chunk(2, -1)
        y = y + head.block.down(F.silu(gate) * up)
        found.append(Step(_rms(y, head.norm, eps), places))
    return found


def _attend(q: Tensor, keys: list[Tensor], values: list[Tensor], causal: Tensor) -> Tensor:
    """[B, T, H, W] of queries of the last step over all steps' keys and values [B, T, G, W]."""
    B, T, H, W = q.shape
    G, step = keys[0].shape[2], len(keys) - 1
    grouped = q.view(B, T, G, H // G, W).permute(0, 2, 3, 1, 4).reshape(B, G, -1, W)  # [B, G, H/G * T, W]
    base = grouped @ keys[0].permute(0, 2, 3, 1)  # [B, G, H/G * T, T]
    mask = causal.tril(-step).repeat(H // G, 1)
    scores = [base.masked_fill(~mask, -torch.inf)]
    shifted = [value.roll(step - j, 1) for j, value in enumerate(values) if j]
    for j in range(1, step + 1):
        key = keys[j].roll(step - j, 1).permute(0, 2, 1, 3).repeat(1, 1, H // G, 1)  # [B, G, H/G * T, W]
        scores.append((grouped * key).sum(-1, keepdim=True))
    weights = torch.softmax(torch.cat(scores, -1).float() * W**-0.5, -1)
    out = weights[..., :T].to(q.dtype) @ values[0].permute(0, 2, 1, 3).to(q.dtype)
    for j, value in enumerate(shifted):
        out = out + weights[..., T + j, None].to(q.dtype) * value.permute(0, 2, 1, 3).repeat(1, 1, H // G, 1)
    return out.view(B, G, H // G, T, W).permute(0, 3, 1, 2, 4).reshape(B, T, H, W)


def _rotation(config: ModelConfig, T: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [1, T, 1, Dh]; sin carries the minus sign of the first half."""
    angles = torch.arange(T, dtype=torch.float32, device=like.device)[:, None] * rope_frequencies(config).to(like.device)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1)[None, :, None], torch.cat((-sin, sin), -1)[None, :, None]


def _rms(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return x if weight is None else F.rms_norm(x, weight.shape, weight, eps)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), -1)
    return x * cos + swapped * sin
