"""Blocks, tables and the prefix cache: plain books, checked by random walks against the obvious model (lists of tokens)."""

from __future__ import annotations

import random

import pytest

from toolkit.errors import EngineError
from toolkit.kv.blocks import BlockPool
from toolkit.kv.prefix import PrefixCache
from toolkit.kv.table import BlockTable


def test_a_fork_shares_full_blocks_and_copies_the_partial_one_on_the_first_write() -> None:
    pool = BlockPool(8)
    parent = BlockTable(pool, 4)
    assert parent.append(6) == []
    child = parent.fork()
    assert child.blocks == parent.blocks == [0, 1] and pool.in_use == 2
    (copy,) = child.append(1)
    assert copy == (1, 2, 2) and child.blocks == [0, 2] and parent.blocks == [0, 1]
    assert parent.append(1) == []  # the parent is the only holder again: it writes in place
    child.release()
    parent.release()
    pool.check()
    assert pool.free == 8


def test_b_beams_over_a_p_token_prefix_hold_the_prefix_once_and_their_own_tails() -> None:
    pool, size, prefix, width, tail = BlockPool(64), 4, 18, 5, 7
    root = BlockTable(pool, size)
    root.append(prefix)
    beams = [root] + [root.fork() for _ in range(width - 1)]
    assert pool.in_use == -(-prefix // size)
    for beam in beams:
        beam.append(tail)
    full = prefix // size
    assert pool.in_use == full + width * (-(-(prefix + tail) // size) - full)
    assert all(sum(pool.holders(block) > 1 for block in beam.blocks) == full for beam in beams)


@pytest.mark.parametrize("seed", range(20))
def test_random_forks_appends_truncations_and_releases_never_mix_up_two_sequences(seed: int) -> None:
    rng = random.Random(seed)
    pool, size = BlockPool(256), rng.choice([1, 2, 4, 16])
    content: dict[int, int] = {}  # slot -> what was written last
    tables: list[tuple[BlockTable, list[int]]] = [(BlockTable(pool, size), [])]
    for step in range(200):
        table, model = tables[rng.randrange(len(tables))]
        verb = rng.choice(["append", "append", "fork", "truncate", "release"])
        if verb == "append":
            count = rng.randrange(1, 6)
            if table.needs(count) > pool.free:
                continue
            before = pool.free
            expected = table.needs(count)
            for copy in table.append(count):
                assert 0 < copy.used < size
                for i in range(copy.used):
                    content[copy.target * size + i] = content.get(copy.source * size + i, -1)
            assert before - pool.free == expected
            for i, slot in enumerate(table.slots(len(model), len(model) + count)):
                content[slot] = step * 10 + i
                model.append(step * 10 + i)
        elif verb == "fork" and len(tables) < 12:
            tables.append((table.fork(), list(model)))
        elif verb == "truncate" and model:
            keep = rng.randrange(len(model))
            table.truncate(keep)
            del model[keep:]
        elif verb == "release" and len(tables) > 1:
            table.release()
            tables.remove((table, model))
        for table, model in tables:
            table.check()
            assert [content[slot] for slot in table.slots(0, table.length)] == model
            if rng.random() < 0.3:  # what is listed is kept, and other changes lie between two looks
                assert table.listed().tolist() == table.slots(0, table.length)
        pool.check()
    for table, _ in tables:
        table.release()
    assert pool.in_use == 0


def test_the_books_refuse_what_would_unbalance_them() -> None:
    pool = BlockPool(1)
    block = pool.take()
    with pytest.raises(EngineError, match="kv_blocks"):
        pool.take()
    pool.release(block)
    with pytest.raises(EngineError, match="cannot be released"):
        pool.release(block)
    with pytest.raises(EngineError, match="cannot be shared"):
        pool.share(block)
    with pytest.raises(EngineError, match="truncate"):
        BlockTable(pool, 4).truncate(1)
    pool._free.append(0)
    with pytest.raises(EngineError, match="disagrees"):
        pool.check()


def test_a_prefix_is_found_by_its_tokens_and_never_covers_the_last_token() -> None:
    pool, size = BlockPool(16), 2
    cache = PrefixCache(pool, size)
    table = BlockTable(pool, size)
    table.append(6)
    cache.insert([1, 2, 3, 4, 5, 6], table.blocks)
    assert cache.match([1, 2, 3, 4, 9]) == table.blocks[:2]
    assert cache.match([1, 2, 3, 4]) == table.blocks[:1]
    assert cache.match([3, 4, 5]) == []
    assert cache.match([1, 2, 3, 9, 9, 9]) == table.blocks[:1]


def test_only_idle_blocks_are_evicted_the_least_recently_used_leaf_first() -> None:
    pool, size = BlockPool(16), 1
    cache = PrefixCache(pool, size)
    for tokens in ([1, 2, 3], [1, 2, 4]):
        table = BlockTable(pool, size)
        table.adopt(cache.match([*tokens, 0]))
        table.append(len(tokens) - table.length)
        cache.insert(tokens, table.blocks)
        table.release()
    assert pool.in_use == cache.evictable == 4
    held = cache.match([1, 2, 3, 0])
    assert cache.evictable == 1
    assert cache.evict(3) == 1  # [4] alone: the others are in use
    for block in held:
        pool.release(block)
    assert cache.evict(1) == 1 and len(cache.match([1, 2, 3, 0])) == 2


def test_an_idle_parent_is_evicted_with_its_index_even_if_a_child_is_held() -> None:
    pool, size = BlockPool(8), 1
    cache = PrefixCache(pool, size)
    first, second = BlockTable(pool, size), BlockTable(pool, size)
    first.append(1)
    second.append(2)
    cache.insert([1], first.blocks)
    cache.insert([1, 2], second.blocks)  # the child is second's block, its parent entry is first's
    first.release()
    assert cache.evict(2) == 1
    assert cache.match([1, 2, 3]) == [] and pool.in_use == 2
    second.release()
    pool.check()
    assert pool.in_use == 0
