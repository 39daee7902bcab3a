"""Unroll: what training computes for whole sequences at once is what drafting computes place by place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.draft.heads import NORMS, plain_features, random_mtp
from tests.train.rows import VOCAB, folder_of, line
from toolkit.model.tiny import tiny_model
from toolkit.train.batches import load
from toolkit.train.shards import shard_paths
from toolkit.train.unroll import unroll

STEPS = 4


@pytest.mark.parametrize("norms", [(), NORMS])
def test_step_s_at_a_place_is_s_steps_of_drafting_from_the_place_s_minus_one_before(
    tmp_path: Path, norms: Sequence[str]
) -> None:
    base = tiny_model()
    head = random_mtp(base.config, VOCAB, norms=norms)
    lines = [line(1, 14, 6), line(2, 9, 3), line(3, 5, 4)]
    batch = load(shard_paths(folder_of(tmp_path, lines))[0]).batch([0, 1, 2])
    found = unroll(head, base.embedding, batch, STEPS)
    T = batch.tokens.shape[1] - 1
    compared = [0] * STEPS
    for step, given in enumerate(found, 1):
        for row, flat in zip(given.rows, given.places.tolist(), strict=True):
            text, place = lines[flat // T].tokens, flat % T
            known = place - step + 2
            rows = batch.hidden[flat // T, :known]
            expected = plain_features(head, base.embedding, text, rows, 0, text[known + 1 : place + 2])[-1]
            assert (row - expected).abs().max() < 1e-4 * expected.abs().max(), (step, flat)
            compared[step - 1] += 1
    # a reply of n tokens has n - 1 places behind its first token, and one less for every further step
    assert compared == [
        (14 - 6 - 1) + (9 - 3 - 1),
        (14 - 6 - 2) + (9 - 3 - 2),
        (14 - 6 - 3) + (9 - 3 - 3),
        (14 - 6 - 4) + (9 - 3 - 4),
    ]


def test_rows_know_nothing_of_what_comes_behind_them(tmp_path: Path) -> None:
    base = tiny_model()
    head = random_mtp(base.config, VOCAB)
    batch = load(shard_paths(folder_of(tmp_path, [line(1, 20, 6)]))[0]).batch([0])
    before = unroll(head, base.embedding, batch, 3)
    batch.hidden[0, 12:] += 1.0
    batch.tokens[0, 13:] = 7
    after = unroll(head, base.embedding, batch, 3)
    for one, other in zip(before, after, strict=True):
        early = one.places < 12
        assert torch.equal(one.places, other.places)
        assert torch.allclose(one.rows[early], other.rows[early], atol=1e-5)
        assert not torch.allclose(one.rows[~early], other.rows[~early], atol=1e-2)


def test_gradients_reach_every_weight_and_are_those_of_finite_differences(tmp_path: Path) -> None:
    from toolkit.draft.mtp_file import assemble, weights_of

    base = tiny_model(dtype=torch.float32)
    start = random_mtp(base.config, VOCAB, gain=0.7)
    weights = {name: w.clone().requires_grad_() for name, w in weights_of(start).items()}
    head = assemble(start.config, {**weights, "ids": start.ids})
    batch = load(shard_paths(folder_of(tmp_path, [line(1, 12, 4)]))[0]).batch([0])

    def total() -> Tensor:
        return torch.stack([step.rows.square().mean() for step in unroll(head, base.embedding, batch, 3)]).sum()

    total().backward()  # type: ignore[no-untyped-call]
    for name, w in weights.items():
        assert w.grad is not None and float(w.grad.abs().max()) > 0, name
        direction = torch.randn(w.shape, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            w += 1e-3 * direction
            up = total()
            w -= 2e-3 * direction
            down = total()
            w += 1e-3 * direction
        slope = float((w.grad * direction).sum())
        assert float((up - down).detach()) / 2e-3 == pytest.approx(slope, rel=0.05, abs=2e-3), name
