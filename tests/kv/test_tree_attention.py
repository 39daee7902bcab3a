"""Attention over draft trees: both views against dense attention with a mask over ancestors, and the moves that settle a tree.

The reference keeps every sequence's keys and values in a list of its own and looks at it row by row.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from toolkit.kv.blocks import BlockPool
from toolkit.kv.quantised import QuantisedStore
from toolkit.kv.slots import SlotView
from toolkit.kv.store import KVStore, Store
from toolkit.kv.table import BlockTable
from toolkit.kv.view import WIDE, PagedView, Span

H, HKV, D, LAYERS = 6, 3, 8, 2
VIEWS = pytest.mark.parametrize(("lists", "kind"), [(False, KVStore), (True, KVStore), (False, QuantisedStore)], ids=["PagedView", "SlotView", "q4"])  # fmt: skip
Kind = type[KVStore | QuantisedStore]
Paths = tuple[tuple[int, ...], ...]


@dataclass
class Line:
    """A paged sequence, and its keys and values [n, Hkv, D] of every layer in order."""

    table: BlockTable
    keys: list[Tensor]
    values: list[Tensor]

    def fork(self) -> Line:
        return Line(self.table.fork(), list(self.keys), list(self.values))


@dataclass
class Rows:
    """New rows of a line: `trunk` of them, then the nodes of a tree."""

    line: Line
    trunk: int
    parent: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        return self.trunk + len(self.parent)

    @property
    def paths(self) -> Paths:
        return tuple(tuple(reversed(list(self._up(node)))) for node in range(len(self.parent)))

    def _up(self, node: int) -> list[int]:
        found = []
        while node >= 0:
            found.append(node)
            node = self.parent[node]
        return found

    def sees(self, row: int, before: int, other: int) -> bool:
        """Whether new row `row` sees place `other` of the line, which had `before` rows."""
        if other < before + self.trunk:
            return other <= before + row
        return row >= self.trunk and other - before - self.trunk in self._up(row - self.trunk)


def dense(rows: Rows, layer: int, before: int, q: Tensor) -> Tensor:
    """[count, H, D] by the definition."""
    keys, values = (x.repeat_interleave(H // HKV, 1) for x in (rows.line.keys[layer], rows.line.values[layer]))
    out = torch.empty_like(q)
    for row in range(rows.count):
        seen = [other for other in range(len(keys)) if rows.sees(row, before, other)]
        weights = torch.softmax(torch.einsum("hd,shd->hs", q[row], keys[seen]) / D**0.5, dim=-1)
        out[row] = torch.einsum("hs,shd->hd", weights, values[seen])
    return out


def by_lists(view: SlotView, store: KVStore, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What a kernel makes of a SlotView: every row writes its own slot, then attends to its list and that."""
    store.write(layer, torch.from_numpy(view.own), k, v)
    out = torch.empty_like(q)
    for row, (first, seen) in enumerate(zip(view.first.tolist(), view.seen.tolist(), strict=True)):
        slots = torch.from_numpy(np.append(view.slots[first : first + seen - 1], view.own[row]).astype(np.int64))
        keys, values = (
            store.gather(x[layer], slots).transpose(0, 1).repeat_interleave(H // HKV, 1) for x in (store.keys, store.values)
        )
        weights = torch.softmax(torch.einsum("hd,shd->hs", q[row], keys) / D**0.5, dim=-1)
        out[row] = torch.einsum("hs,shd->hd", weights, values)
    return out


def kept(store: Store, x: Tensor) -> Tensor:
    """What the store makes of vectors."""
    return store.roundtrip(x) if isinstance(store, QuantisedStore) else x


def worst(store: Store, feeds: list[Rows], *, lists: bool, fault: bool = False) -> float:
    """Largest difference from the reference in one pass; the lines have grown afterwards. fault: a sibling is seen."""
    before = [rows.line.table.length for rows in feeds]
    for rows in feeds:
        store.copy(rows.line.table.append(rows.count))
    spans = [Span(rows.line.table, rows.count, nosy(rows.paths) if fault else rows.paths) for rows in feeds]
    paged, slots = PagedView(store, spans), SlotView(store, spans) if isinstance(store, KVStore) else None
    T, difference = sum(rows.count for rows in feeds), 0.0
    for layer in range(LAYERS):
        q, k, v = torch.randn(T, H, D), torch.randn(T, HKV, D), torch.randn(T, HKV, D)
        if lists:
            assert slots is not None and isinstance(store, KVStore)
            found = by_lists(slots, store, layer, q, k, v)
        else:
            found = paged.attend(layer, q, k, v)
        at = 0
        for rows, start in zip(feeds, before, strict=True):
            mine, line = slice(at, at + rows.count), rows.line
            line.keys[layer], line.values[layer] = (
                torch.cat([line.keys[layer], kept(store, k[mine])]),
                torch.cat([line.values[layer], kept(store, v[mine])]),
            )
            difference = max(difference, float((found[mine] - dense(rows, layer, start, q[mine])).abs().max()))
            at += rows.count
    return difference


def nosy(paths: Paths) -> Paths:
    """Each node also sees the first node that is none of its ancestors and stands before it."""
    found = []
    for node, path in enumerate(paths):
        other = next((i for i in range(node) if i not in path), None)
        found.append(path if other is None else tuple(sorted((*path, other))))
    return tuple(found)


def settle(store: Store, rows: Rows, path: list[int]) -> None:
    """Keep the nodes of a path as if they had been a chain: in the store by `move`, in the reference by picking."""
    line = rows.line
    start = line.table.length - len(rows.parent)
    slots = line.table.slots(start, line.table.length)
    store.move([slots[node] for node in path], slots[: len(path)])
    line.table.truncate(start + len(path))
    kept = [*range(start), *(start + node for node in path)]
    line.keys, line.values = ([each[kept] for each in x] for x in (line.keys, line.values))


def new_store(block_size: int, kind: type[KVStore | QuantisedStore] = KVStore) -> tuple[Store, BlockPool]:
    blocks = 4096 // block_size
    store = kind(
        layers=LAYERS, kv_heads=HKV, head_dim=D, blocks=blocks, block_size=block_size, dtype=torch.float32, device=torch.device("cpu"),
    )  # fmt: skip
    return store, BlockPool(blocks)


def empty(store: Store, pool: BlockPool) -> Line:
    nothing = [torch.zeros(0, HKV, D) for _ in range(LAYERS)]
    return Line(BlockTable(pool, store.block_size), list(nothing), list(nothing))


def tree(dice: random.Random, nodes: int) -> tuple[int, ...]:
    return tuple(dice.randrange(-1, node) if dice.random() < 0.8 else node - 1 for node in range(nodes))


def path_of(dice: random.Random, rows: Rows) -> list[int]:
    """Some nodes from the root down."""
    if not rows.parent:
        return []
    path = dice.choice(rows.paths)
    return list(path[: dice.randrange(len(path) + 1)])


@VIEWS
@pytest.mark.parametrize("nodes", [1, 2, 7, WIDE - 1, WIDE, WIDE + 8, 64])
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_a_node_sees_what_comes_before_the_tree_its_ancestors_and_itself(
    lists: bool, kind: Kind, nodes: int, block_size: int
) -> None:
    dice = random.Random(nodes)
    torch.manual_seed(nodes)
    store, pool = new_store(block_size, kind)
    line = empty(store, pool)
    assert worst(store, [Rows(line, 21)], lists=lists) < 1e-5
    rows = Rows(line, 2, tree(dice, nodes))
    assert worst(store, [rows], lists=lists) < 1e-5


@VIEWS
@pytest.mark.parametrize("nodes", [7, WIDE + 8])
def test_a_sibling_that_is_seen_is_noticed(lists: bool, kind: Kind, nodes: int) -> None:
    """The power of the other tests."""
    torch.manual_seed(0)
    store, pool = new_store(4, kind)
    line = empty(store, pool)
    worst(store, [Rows(line, 21)], lists=lists)
    assert worst(store, [Rows(line, 1, tree(random.Random(1), nodes))], lists=lists, fault=True) > 1e-3


@VIEWS
@pytest.mark.parametrize("seed", range(6))
def test_passes_over_trees_chains_and_prompts_of_forked_lines_match_dense_attention(lists: bool, kind: Kind, seed: int) -> None:
    """Trees are settled after each pass, so that later passes read what moved; long shared beginnings are attended to once."""
    dice = random.Random(seed)
    torch.manual_seed(seed)
    store, pool = new_store(dice.choice([1, 4, 16]), kind)
    lines = [empty(store, pool)]
    assert worst(store, [Rows(lines[0], dice.choice([5, 300]))], lists=lists) < 1e-5
    for _ in range(8):
        if len(lines) < 5:
            lines.append(dice.choice(lines).fork())
        chosen = dice.sample(lines, dice.randrange(1, len(lines) + 1))
        feeds = [Rows(line, dice.choice([1, 1, 3, 20]), tree(dice, dice.choice([0, 3, 8, 14, 20]))) for line in chosen]
        assert worst(store, feeds, lists=lists) < 1e-5
        for rows in feeds:
            settle(store, rows, path_of(dice, rows))
        for line in lines:
            line.table.check()
            slots = line.table.slots(0, line.table.length)
            for layer in range(LAYERS):
                found = [store.outward(x).transpose(0, 1) for x in store.read(layer, torch.tensor(slots))]
                assert torch.equal(found[0], line.keys[layer]) and torch.equal(found[1], line.values[layer])
    for line in lines:
        line.table.release()
    assert pool.in_use == 0


@pytest.mark.parametrize(
    ("sources", "targets"),
    [
        ([3, 5, 9], [3, 4, 5]),
        ([4, 5, 6], [5, 6, 7]),
        ([5, 6, 7], [4, 5, 6]),
        ([1, 2], [2, 1]),
        ([0, 1, 2], [0, 1, 2]),
        ([], []),
    ],
)
def test_slots_move_as_if_all_had_been_read_before_any_is_written(sources: list[int], targets: list[int]) -> None:
    torch.manual_seed(0)
    store, _ = new_store(4)
    assert isinstance(store, KVStore)
    for tensor in (store.keys, store.values):
        tensor[:, :, :16] = torch.randn(LAYERS, HKV, 16, D)
    before = store.keys.clone(), store.values.clone()
    store.move(sources, targets)
    for tensor, old in zip((store.keys, store.values), before, strict=True):
        hoped = old.clone()
        for source, target in zip(sources, targets, strict=True):
            hoped[:, :, target] = old[:, :, source]
        assert torch.equal(tensor, hoped)


def test_nodes_whose_ancestors_lie_on_the_longest_path_share_its_list() -> None:
    """Root 0 with children 1, 2 and 3, of which 2 goes on: the spine is 0, 2, 4. Node 5, behind node 3, has a list of its own."""
    store = KVStore(layers=1, kv_heads=HKV, head_dim=D, blocks=8, block_size=4, dtype=torch.float32, device=torch.device("cpu"))
    table = BlockTable(BlockPool(8), 4)
    paths = ((0,), (0, 1), (0, 2), (0, 3), (0, 2, 4), (0, 3, 5))
    table.append(9 + len(paths))
    view = SlotView(store, [Span(table, 2 + len(paths), paths)])
    assert view.first.tolist() == [0] * 7 + [12] and view.seen.tolist() == [8, 9, 10, 11, 11, 11, 12, 12] and view.longest == 12
    assert view.slots.tolist() == [*range(9), 9, 11, 13, *range(9), 9, 12, 14] and view.own.tolist() == list(range(7, 15))
