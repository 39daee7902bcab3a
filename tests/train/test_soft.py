"""The loss against torch's own, and its estimate of what it leaves out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from toolkit.train.soft import candidates, soft_loss


def rows(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows [600, 16], head [50, 16] in bfloat16 numbers, target ids and weights that need not sum to 1."""
    dice = torch.Generator().manual_seed(seed)
    x = torch.randn(600, 16, generator=dice).to(torch.bfloat16).float()
    head = torch.randn(50, 16, generator=dice).to(torch.bfloat16)
    ids = torch.stack([torch.randperm(50, generator=dice)[:4] for _ in range(600)])
    return x, head, ids, torch.rand(600, 4, generator=dice) * 0.3


def exact(x: Tensor, head: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    logits = x @ head.float().T
    return (weights * (logits.logsumexp(1, keepdim=True) - logits.gather(1, ids))).sum(1).mean()


def test_with_nothing_left_out_loss_and_gradient_are_those_of_cross_entropy() -> None:
    x, head, ids, weights = rows()
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    pool = candidates(head, ids, 50, torch.Generator())
    found, expected = soft_loss(one, pool, ids, weights), exact(other, head, ids, weights)
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=2e-2)
    (3 * found).backward()  # type: ignore[no-untyped-call]
    (3 * expected).backward()  # type: ignore[no-untyped-call]
    assert one.grad is not None and other.grad is not None
    assert (one.grad - other.grad).abs().max() < 0.03 * other.grad.abs().max()


def test_what_is_left_out_is_stood_for_by_what_was_drawn() -> None:
    x, head, ids, weights = rows()
    ids = ids % 10  # forty ids are nobody's target
    expected = float(exact(x, head, ids, weights))
    dice = torch.Generator().manual_seed(0)
    found = [float(soft_loss(x, candidates(head, ids, 20, dice), ids, weights)) for _ in range(40)]
    assert sum(found) / 40 == pytest.approx(expected, rel=0.05)
    ignored = float(soft_loss(x, candidates(head, ids, 0, dice), ids, weights))
    assert ignored < 0.8 * expected


def test_rows_without_any_weight_cost_nothing_and_pull_nowhere() -> None:
    x, head, ids, weights = rows()
    x.requires_grad_()
    pool = candidates(head, ids, 5, torch.Generator().manual_seed(1))
    loss = soft_loss(x, pool, ids, torch.zeros_like(weights))
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == 0.0 and x.grad is not None and float(x.grad.abs().max()) == 0.0
