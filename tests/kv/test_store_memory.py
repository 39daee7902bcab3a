"""A store takes address space for all of its blocks and memory for those that were written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from toolkit.kv.store import KVStore

STATUS = Path("/proc/self/status")


def resident() -> int:
    """kB in memory."""
    return next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith("VmRSS"))


@pytest.mark.skipif(not STATUS.exists(), reason="reads Linux's /proc")
def test_a_large_store_costs_memory_only_once_it_is_written() -> None:
    before = resident()
    store = KVStore(
        layers=4, kv_heads=4, head_dim=64, blocks=4096, block_size=16, dtype=torch.float32, device=torch.device("cpu")
    )  # fmt: skip
    assert store.keys.nbytes + store.values.nbytes == 1 << 29
    assert resident() - before < 1 << 15
    store.keys[0].fill_(1.0)
    assert resident() - before > 1 << 15
    assert store.keys[1:].count_nonzero() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_store_starts_with_zeros_of_its_dtype(dtype: torch.dtype) -> None:
    store = KVStore(layers=1, kv_heads=2, head_dim=8, blocks=3, block_size=4, dtype=dtype, device=torch.device("cpu"))
    assert store.values.dtype == dtype and store.values.shape == (1, 2, 12, 8)
    assert store.values.count_nonzero() == 0
