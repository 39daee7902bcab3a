"""Soft: cross-entropy of rows against the base's likeliest next tokens, over a sample of the vocabulary, with its gradient.

In: rows [A, D], target ids [A, K] and their weights [A, K].   Out: the mean loss, differentiable in the rows.
What is summed over is every id that is a target somewhere in the batch, and a random part of the others, each of which
stands for as many as were left out (its logit is raised by the logarithm of their ratio).
Knows nothing about: heads, sequences.
Invariants: weights of a row need not sum to 1: what they lack is the base's mass on tokens that are not in the vocabulary, and
counts for nothing. With nothing left out the loss is the exact cross-entropy.
Source: importance sampling of the partition function (Bengio & Senecal 2003); the gradient is computed with the loss, block by block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 256  # rows whose logits are held at once


@dataclass(frozen=True, slots=True)
class Candidates:
    """head [C, D] bfloat16 of the ids taken, bias [C] (what a sampled one stands for), and where each id stands, -1 = left out."""

    head: Tensor
    bias: Tensor
    place: Tensor


def candidates(head: Tensor, wanted: Tensor, others: int, dice: torch.Generator) -> Candidates:
    """The `wanted` ids (any shape, repeats allowed) and `others` random ones of head [V, D] bfloat16."""
    taken = torch.zeros(len(head), dtype=torch.bool)
    taken[wanted.reshape(-1)] = True
    rest = (~taken).nonzero()[:, 0]
    some = rest[torch.randperm(len(rest), generator=dice)[:others]]
    ids = torch.cat((taken.nonzero()[:, 0], some))
    bias = torch.zeros(len(ids))
    if len(some):
        bias[-len(some) :] = math.log(len(rest) / len(some))
    place = torch.full((len(head),), -1)
    place[ids] = torch.arange(len(ids))
    return Candidates(head[ids].contiguous(), bias, place)


def soft_loss(rows: Tensor, pool: Candidates, ids: Tensor, weights: Tensor) -> Tensor:
    """Mean over rows [A, D] of the cross-entropy against `weights` [A, K] at `ids` [A, K], all of them candidates."""
    loss: Tensor = _SoftLoss.apply(rows, pool, pool.place[ids], weights)  # type: ignore[no-untyped-call]
    return loss


class _SoftLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, pool: Candidates, places: Tensor, weights: Tensor) -> Tensor:
        gradient = torch.empty_like(rows, dtype=torch.float32)
        total = torch.zeros((), dtype=torch.float64)
        for at in range(0, len(rows), BLOCK):
            part = slice(at, at + BLOCK)
            logits = F.linear(rows[part].to(torch.bfloat16), pool.head).float().add_(pool.bias)
            chosen = logits.gather(1, places[part])
            top = logits.amax(1, keepdim=True)
            odds = logits.sub_(top).exp_()
            mass = odds.sum(1, keepdim=True)
            share = weights[part].sum(1, keepdim=True)
            total += (share * (mass.log() + top)).sum() - (weights[part] * chosen).sum()
            odds.mul_(share / mass).scatter_add_(1, places[part], -weights[part])
            gradient[part] = odds.to(torch.bfloat16) @ pool.head
        ctx.save_for_backward(gradient.div_(len(rows)))
        return (total / len(rows)).float()

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * above[0], None, None, None
