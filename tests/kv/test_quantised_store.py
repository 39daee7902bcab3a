"""The quantised store by itself: its error is the one that theory gives, its rotation spreads what stands out, its memory is 4 bits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from toolkit.errors import UnsupportedError, UsageError
from toolkit.kv.quantised import QuantisedStore, codebook, hadamard
from toolkit.kv.store import KVStore
from toolkit.kv.table import BlockCopy

CPU = torch.device("cpu")


def new(head_dim: int = 64, bits: int = 4, blocks: int = 4) -> QuantisedStore:
    return QuantisedStore(
        layers=2, kv_heads=3, head_dim=head_dim, blocks=blocks, block_size=4, dtype=torch.float32, device=CPU, bits=bits
    )


def error(store: QuantisedStore, x: torch.Tensor) -> float:
    """Squared error over squared length."""
    return float((x - store.roundtrip(x)).square().sum() / x.square().sum())


def test_the_hadamard_transform_is_the_matrix_of_its_definition_and_its_own_inverse() -> None:
    matrix = torch.tensor([[(-1.0) ** bin(i & j).count("1") for j in range(16)] for i in range(16)]) / 4
    x = torch.randn(5, 3, 16)
    torch.testing.assert_close(hadamard(x), x @ matrix.T)
    torch.testing.assert_close(hadamard(hadamard(x)), x)


@pytest.mark.parametrize(("bits", "distortion"), [(1, 0.3634), (2, 0.1175), (4, 0.009497)])
def test_the_codebook_is_lloyd_and_max_s_in_high_dimensions(bits: int, distortion: float) -> None:
    """Max 1960, table I: the least mean squared errors for a unit normal; 2504.19874 quotes 0.36, 0.117 and 0.009."""
    levels = codebook(1024, bits) * math.sqrt(1024)
    assert np.all(np.diff(levels) > 0) and np.allclose(levels, -levels[::-1], atol=1e-2)
    x = np.linspace(-8, 8, 200_001)
    nearest = np.abs(x[:, None] - levels).min(1)
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    assert float((nearest**2 * density).sum() * (x[1] - x[0])) == pytest.approx(distortion, rel=0.01)


@pytest.mark.parametrize("head_dim", [8, 64, 128])
def test_the_error_is_that_of_the_codebook_whatever_stands_out_in_a_vector(head_dim: int) -> None:
    torch.manual_seed(0)
    plain = torch.randn(4000, head_dim)
    outlier = plain.clone()
    outlier[:, 1] *= 50
    assert error(new(head_dim), plain) < 0.0095 and error(new(head_dim), outlier) < 0.02
    assert error(new(head_dim, bits=1), plain) > 0.25


def test_a_vector_becomes_the_same_alone_and_among_others_and_zero_stays_zero() -> None:
    torch.manual_seed(0)
    store, x = new(), torch.randn(33, 3, 64) * torch.logspace(-15, 15, 33)[:, None, None]
    x[7] = 0.0
    whole = store.roundtrip(x)
    assert torch.equal(whole, torch.cat([store.roundtrip(row[None]) for row in x]))
    assert not whole[7].any() and bool(whole.isfinite().all())


def test_what_is_not_finite_is_not_hidden() -> None:
    x = torch.ones(2, 64)
    x[0, 3] = torch.nan
    assert bool(new().roundtrip(x)[0].isnan().all()) and bool(new().roundtrip(x)[1].isfinite().all())


def test_scores_and_sums_in_the_rotated_basis_are_those_of_the_vectors_themselves() -> None:
    torch.manual_seed(0)
    store = new()
    k, v, q = torch.randn(8, 3, 64), torch.randn(8, 3, 64), torch.randn(8, 3, 64)
    store.write(1, torch.arange(8), k, v)
    keys, values = store.read(1, slice(0, 8))
    torch.testing.assert_close(
        torch.einsum("thd,hsd->ths", store.inward(q), keys), torch.einsum("thd,shd->ths", q, store.roundtrip(k)), atol=1e-4, rtol=1e-4
    )  # fmt: skip
    torch.testing.assert_close(store.outward(values).transpose(0, 1), store.roundtrip(v))
    assert not any(x.any() for x in store.read(0, slice(0, 8)))  # another layer is another memory


def test_copies_and_moves_carry_codes_and_quantise_nothing_twice() -> None:
    torch.manual_seed(0)
    store = new()
    for layer in range(2):
        store.write(layer, torch.arange(8), torch.randn(8, 3, 64), torch.randn(8, 3, 64))
    before = store.codes.clone(), store.norms.clone()
    store.copy([BlockCopy(1, 3, store.block_size)])
    store.move([5, 6], [6, 7])
    for tensor, old in zip((store.codes, store.norms), before, strict=True):
        assert torch.equal(tensor[:, :, :, 12:16], old[:, :, :, 4:8])
        assert torch.equal(tensor[:, :, :, 6:8], old[:, :, :, 5:7]) and torch.equal(tensor[:, :, :, :6], old[:, :, :, :6])


def test_a_number_takes_four_bits_and_its_share_of_a_norm() -> None:
    full = KVStore(layers=2, kv_heads=3, head_dim=64, blocks=4, block_size=4, dtype=torch.float32, device=CPU)
    assert new().nbytes * 8 == full.keys.numel() * 2 * (4 + 16 / 64)
    assert full.nbytes / new().nbytes == pytest.approx(32 / 4.25)


def test_shapes_and_widths_that_it_cannot_have_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="96 is no power of two"):
        new(head_dim=96)
    with pytest.raises(UsageError, match="bits"):
        new(bits=3)
