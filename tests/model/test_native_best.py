"""The likeliest allowed tokens: against numpy bit for bit, against torch within rounding, whatever rows stand beside."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.model.native_twin import F, Floats, exponential, total
from toolkit.contracts import Mask
from toolkit.errors import EngineError
from toolkit.grammar.mask import unpack
from toolkit.model.native.best import Likeliest, best
from toolkit.model.native.library import kernels, missing
from toolkit.sample import beam

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"no native path: {missing()}")
SETS = list(kernels()) if missing() is None else []
WIDTHS = (1, 7, 8, 33, 97, 512, 513, 1500)


def log_sum(x: Floats, allowed: np.ndarray) -> float:
    """Lanes of eight, blocks of 512, in the order of the kernels."""
    if not allowed.any():
        return -math.inf
    largest = x[allowed].max()
    terms = np.where(allowed, exponential(np.where(allowed, x, largest) - largest), F(0))
    sums = np.zeros(8, F)
    for start in range(0, len(x), 512):
        block, part = terms[start : start + 512], np.zeros(8, F)
        for lane in np.pad(block, (0, -len(block) % 8)).reshape(-1, 8):
            part = part + lane
        sums = sums + part
    return float(F(float(largest) + math.log(float(total(sums)))))


def twin(x: Floats, mask: Mask | None, count: int) -> Likeliest:
    everything = np.ones(len(x), bool)
    allowed = everything if mask is None else unpack(mask[None], len(x))[0]
    norm, legal = log_sum(x, everything), log_sum(x, allowed)
    order = sorted(np.flatnonzero(allowed).tolist(), key=lambda i: (-x[i], i))
    return [(i, min(float(x[i]) - norm, 0.0), min(float(x[i]) - legal, 0.0)) for i in order[:count]]


def case(width: int, rows: int) -> tuple[torch.Tensor, Mask]:
    rng = np.random.default_rng(width)
    logits = np.round(rng.standard_normal((rows, width)) * 40) / 4  # with ties, some far below
    bits = rng.random((rows, width)) < rng.choice([0.0, 0.02, 0.5, 1.0], (rows, 1))
    words = np.packbits(np.pad(bits, ((0, 0), (0, -width % 32))), axis=1, bitorder="little").view("<i4")
    return torch.from_numpy(logits.astype(np.float32)), words.astype(np.int32)


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize("width", WIDTHS)
def test_norms_and_likeliest_tokens_equal_the_slow_twin_bit_for_bit(kernel_set: str, width: int) -> None:
    logits, masks = case(width, 9)
    for mask in (masks, None):
        expected = [twin(row, None if mask is None else mask[i], 5) for i, row in enumerate(logits.numpy())]
        found = best(list(logits), mask, 5, kernels()[kernel_set], threads=2)
        assert found == expected
        for i, row in enumerate(logits):
            assert best([row], None if mask is None else mask[i : i + 1], 5, kernels()[kernel_set]) == expected[i : i + 1]


@pytest.mark.parametrize("masked", [True, False])
def test_it_says_what_torch_says_within_rounding(masked: bool) -> None:
    logits = torch.randn(6, 1500, generator=torch.Generator().manual_seed(1)) * 4
    mask = case(1500, 6)[1] if masked else None
    allowed = None if mask is None else torch.from_numpy(unpack(mask, 1500).copy())
    found, expected = best(list(logits), mask, 7, kernels()[SETS[0]]), beam.best(logits, allowed, 7)
    assert [[token for token, *_ in row] for row in found] == [[token for token, *_ in row] for row in expected]
    for one, two in zip(found, expected, strict=True):
        assert np.allclose(np.array(one).reshape(-1, 3)[:, 1:], np.array(two).reshape(-1, 3)[:, 1:], rtol=0, atol=4e-6)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_is_refused(wrong: float) -> None:
    logits = torch.zeros(3, 70)
    logits[1, 69] = wrong
    with pytest.raises(EngineError, match="not finite"):
        best(list(logits), None, 2, kernels()[SETS[0]])


def test_rows_and_masks_that_do_not_fit_are_refused_and_rows_may_lie_anywhere() -> None:
    index, wide = kernels()[SETS[0]], torch.arange(200.0).view(2, 100)
    assert [row[0][0] for row in best(list(wide[:, 3:70]), None, 1, index)] == [66, 66]
    assert best([], None, 1, index) == [] and best([wide[0]], None, 0, index) == [[]]
    for rows in ([wide[0].double()], [wide[0, ::2], wide[0, :50]], [wide[0], wide[1, :99]]):
        with pytest.raises(EngineError, match="must be"):
            best(rows, None, 1, index)
    for mask in (np.zeros((1, 4), np.int32), np.zeros((2, 3), np.int32), np.zeros((2, 4), np.int64)):
        with pytest.raises(EngineError, match=r"int32 \[2, 4\]"):
            best(list(wide), mask, 1, index)
