"""Paged, shared-prefix attention against its obvious twin: one sequence at a time over contiguous keys and values.

Over a quantised store the twin attends to what quantisation leaves of every vector, in its own basis.
"""

from __future__ import annotations

import random

import pytest
import torch

from toolkit.kv.blocks import BlockPool
from toolkit.kv.quantised import QuantisedStore
from toolkit.kv.store import KVStore, Store
from toolkit.kv.table import BlockTable
from toolkit.kv.view import PagedView, Span

H, HKV, D, LAYERS = 6, 3, 8, 2
KINDS = pytest.mark.parametrize("kind", [KVStore, QuantisedStore])


def plain_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """q [n, H, D] are the last n positions of k, v [S, Hkv, D]."""
    n, S = len(q), len(k)
    k, v = k.repeat_interleave(H // HKV, 1), v.repeat_interleave(H // HKV, 1)
    out = torch.empty_like(q)
    for row in range(n):
        seen = S - n + row + 1
        weights = torch.softmax(torch.einsum("hd,shd->hs", q[row], k[:seen]) / D**0.5, dim=-1)
        out[row] = torch.einsum("hs,shd->hd", weights, v[:seen])
    return out


class Pair:
    """A paged sequence and its contiguous twin."""

    def __init__(self, table: BlockTable, keys: list[torch.Tensor], values: list[torch.Tensor]) -> None:
        self.table, self.keys, self.values = table, keys, values

    def fork(self) -> Pair:
        return Pair(self.table.fork(), list(self.keys), list(self.values))


def kept(store: Store, x: torch.Tensor) -> torch.Tensor:
    return store.roundtrip(x) if isinstance(store, QuantisedStore) else x


def contents(store: Store, slots: list[int]) -> torch.Tensor:
    """[L, 2, Hkv, n, D] of what stands there."""
    return torch.stack([torch.stack(store.read(layer, torch.tensor(slots))) for layer in range(LAYERS)])


def run_pass(store: Store, pairs: list[Pair], counts: list[int]) -> PagedView:
    for pair, count in zip(pairs, counts, strict=True):
        store.copy(pair.table.append(count))
    view = PagedView(store, [Span(pair.table, count) for pair, count in zip(pairs, counts, strict=True)])
    T = sum(counts)
    for layer in range(LAYERS):
        q, k, v = torch.randn(T, H, D), torch.randn(T, HKV, D), torch.randn(T, HKV, D)
        got, at = view.attend(layer, q, k, v), 0
        for pair, count in zip(pairs, counts, strict=True):
            rows = slice(at, at + count)
            pair.keys[layer] = torch.cat([pair.keys[layer], kept(store, k[rows])])
            pair.values[layer] = torch.cat([pair.values[layer], kept(store, v[rows])])
            torch.testing.assert_close(
                got[rows], plain_attention(q[rows], pair.keys[layer], pair.values[layer]), rtol=1e-4, atol=1e-5
            )
            at += count
    return view


def empty(store: Store, pool: BlockPool) -> Pair:
    nothing = [torch.zeros(0, HKV, D) for _ in range(LAYERS)]
    return Pair(BlockTable(pool, store.block_size), list(nothing), list(nothing))


def new_store(block_size: int, kind: type[KVStore | QuantisedStore] = KVStore) -> tuple[Store, BlockPool]:
    blocks = 4096 // block_size
    store = kind(
        layers=LAYERS,
        kv_heads=HKV,
        head_dim=D,
        blocks=blocks,
        block_size=block_size,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    return store, BlockPool(blocks)


@KINDS
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_records_that_share_a_prefix_and_beams_that_share_a_record_match_plain_attention(
    block_size: int, kind: type[KVStore | QuantisedStore]
) -> None:
    torch.manual_seed(0)
    store, pool = new_store(block_size, kind)
    root = empty(store, pool)
    run_pass(store, [root], [300])
    records = [root.fork() for _ in range(3)]
    for record, count in zip(records, (5, 290, 33), strict=True):
        run_pass(store, [record], [count])
    beams = [record.fork() for record in records for _ in range(4)]
    for counts in ([1] * 12, [3, 1, 1, 2] * 3, [1] * 12):
        view = run_pass(store, beams, counts)
    assert len(view._runs) == 2  # the common prefix once for all twelve, the long record once for its four beams


@KINDS
@pytest.mark.parametrize("seed", range(6))
def test_random_passes_over_forked_sequences_match_plain_attention(seed: int, kind: type[KVStore | QuantisedStore]) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    store, pool = new_store(rng.choice([1, 3, 16]), kind)
    pairs = [empty(store, pool)]
    run_pass(store, pairs, [rng.choice([1, 17, 270])])
    for _ in range(12):
        if len(pairs) < 8:
            pairs.append(rng.choice(pairs).fork())
        chosen = rng.sample(pairs, rng.randrange(1, len(pairs) + 1))
        run_pass(store, chosen, [rng.choice([1, 1, 1, 2, 5, 16, 17, 40]) for _ in chosen])


@KINDS
def test_a_fork_never_writes_into_its_parent(kind: type[KVStore | QuantisedStore]) -> None:
    torch.manual_seed(1)
    store, pool = new_store(4, kind)
    parent = empty(store, pool)
    run_pass(store, [parent], [6])
    before = contents(store, parent.table.slots(0, 6))
    child = parent.fork()
    run_pass(store, [child], [9])
    assert torch.equal(contents(store, parent.table.slots(0, 6)), before)
    run_pass(store, [parent, child], [2, 2])


def test_a_short_common_beginning_does_not_hide_the_long_one_behind_it() -> None:
    torch.manual_seed(2)
    store, pool = new_store(4)
    root = empty(store, pool)
    run_pass(store, [root], [4])
    records = [root.fork() for _ in range(2)]
    for record in records:
        run_pass(store, [record], [300])
    view = run_pass(store, [record.fork() for record in records for _ in range(2)], [1, 1, 1, 1])
    assert [len(run.rows) for run in view._runs] == [2, 2]
