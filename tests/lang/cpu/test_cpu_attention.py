"""Attention of the CPU stand-ins against one query, one head, one key at a time in float64."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import pytest
import torch

SLOTS, WIDTH, VALUE_WIDTH = 512, 8, 6
SCALE = 0.37


class Pool:
    """A pool whose rows are scattered: request r's position p is in slot table[r, p]."""

    def __init__(self, kv_heads: int = 2, dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        make = torch.Generator().manual_seed(seed)
        self.keys = torch.randn(SLOTS, kv_heads, WIDTH, generator=make).to(dtype)
        self.values = torch.randn(SLOTS, kv_heads, VALUE_WIDTH, generator=make).to(dtype)
        self.table = torch.randperm(SLOTS, generator=make)[:480].view(3, 160).int()
        self.make = make

    def queries(self, count: int, heads: int) -> torch.Tensor:
        return torch.randn(count, heads, WIDTH, generator=self.make)

    def dense(self, query: torch.Tensor, row: int, seen: list[int]) -> torch.Tensor:
        """[H, D] -> [H, Dv]: the definition, over the positions in `seen`."""
        heads, groups = query.shape[0], query.shape[0] // self.keys.shape[1]
        out = torch.zeros(heads, VALUE_WIDTH, dtype=torch.float64)
        for head in range(heads):
            slots = [int(self.table[row, position]) for position in seen]
            weights = [
                math.exp(SCALE * float(query[head].double() @ self.keys[slot, head // groups].double())) for slot in slots
            ]
            for weight, slot in zip(weights, slots, strict=True):
                out[head] += weight / sum(weights) * self.values[slot, head // groups].double()
        return out


def decode(
    kernels: ModuleType, pool: Pool, query: torch.Tensor, rows: list[int], lengths: list[int], **more: Any
) -> torch.Tensor:
    out = torch.full((len(rows), query.shape[1], VALUE_WIDTH), math.nan)
    given = {
        "key": None,
        "value": None,
        "loc": torch.empty(0),
        "k_scale": 1.0,
        "v_scale": 1.0,
        "logit_cap": 0.0,
        "window": 0,
    } | more
    kernels.decode_attention_cpu(
        query, pool.keys, pool.values, given["k_scale"], given["v_scale"], out, given["key"], given["value"], given["loc"],
        torch.empty(0), pool.table, torch.tensor(rows), torch.tensor(lengths), SCALE, given["logit_cap"],
        given.get("cross", False), given["window"], given.get("encoder_lens"), given.get("sinks"),
    )  # fmt: skip
    return out


def extend(
    kernels: ModuleType, pool: Pool, query: torch.Tensor, rows: list[int], lengths: list[int], news: list[int], **more: Any
) -> torch.Tensor:
    out = torch.full((query.shape[0], query.shape[1], VALUE_WIDTH), math.nan)
    starts = torch.tensor([sum(news[:i]) for i in range(len(news))], dtype=torch.int32)
    kernels.extend_attention_cpu(
        query, query, query, out, pool.keys, pool.values, 1.0, 1.0, pool.table, torch.tensor(rows), torch.tensor(lengths),
        torch.tensor(news, dtype=torch.int32), starts, max(news), SCALE, 0.0, False, 0, None, None,
        more.get("tree_mask"), more.get("is_causal", True),
    )  # fmt: skip
    return out


@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("lengths", [[1, 1, 1], [7, 160, 31]])
def test_decoding_is_the_dense_definition(kernels: ModuleType, heads: int, lengths: list[int]) -> None:
    pool = Pool()
    query = pool.queries(3, heads)
    found = decode(kernels, pool, query, [2, 0, 1], lengths)
    expected = [pool.dense(query[b], row, list(range(n))) for b, (row, n) in enumerate(zip([2, 0, 1], lengths, strict=True))]
    torch.testing.assert_close(found.double(), torch.stack(expected), atol=1e-5, rtol=1e-5)


def test_decoding_stores_the_new_key_and_value_before_it_reads(kernels: ModuleType) -> None:
    pool, before = Pool(), Pool()
    slot = int(pool.table[1, 9])
    key, value = torch.randn(1, 2, WIDTH), torch.randn(1, 2, VALUE_WIDTH)
    query = pool.queries(1, 2)
    found = decode(kernels, pool, query, [1], [10], key=key, value=value, loc=torch.tensor([slot]))
    assert torch.equal(pool.keys[slot], key[0]) and torch.equal(pool.values[slot], value[0])
    others = torch.arange(SLOTS) != slot
    assert torch.equal(pool.keys[others], before.keys[others]) and torch.equal(pool.values[others], before.values[others])
    torch.testing.assert_close(found[0].double(), pool.dense(query[0], 1, list(range(10))), atol=1e-5, rtol=1e-5)


def test_a_request_decodes_bit_for_bit_alike_alone_and_in_a_batch(kernels: ModuleType) -> None:
    pool = Pool()
    query = pool.queries(3, 6)
    together = decode(kernels, pool, query, [0, 1, 2], [5, 90, 160])
    alone = [decode(kernels, pool, query[b : b + 1], [b], [n])[0] for b, n in enumerate([5, 90, 160])]
    assert torch.equal(together, torch.stack(alone))


@pytest.mark.parametrize("news", [[1, 1, 1], [4, 4, 4], [10, 1, 3], [70, 129, 64], [0, 2, 0]])
def test_extending_sees_the_prefix_and_what_is_causal_in_the_extension(kernels: ModuleType, news: list[int]) -> None:
    pool = Pool()
    lengths = [n + prefix for n, prefix in zip(news, [0, 30, 1], strict=True)]
    query = pool.queries(sum(news), 4)
    found = extend(kernels, pool, query, [1, 2, 0], lengths, news)
    expected = [
        pool.dense(query[sum(news[:b]) + i], row, list(range(lengths[b] - news[b] + i + 1)))
        for b, row in enumerate([1, 2, 0])
        for i in range(news[b])
    ]
    torch.testing.assert_close(found.double(), torch.stack(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("count", [1, 5, 70])
def test_a_tree_mask_says_what_nodes_see_of_each_other(kernels: ModuleType, count: int) -> None:
    pool = Pool()
    mask = torch.rand(2, count, count, generator=pool.make) < 0.4
    mask |= torch.eye(count, dtype=torch.bool)  # a node sees itself; nothing else is said about the mask's shape here
    query = pool.queries(2 * count, 4)
    lengths, rows = [count + 11, count], [0, 2]
    longer = torch.cat((mask.flatten(), torch.ones(9, dtype=torch.bool)))  # buffers may be larger than the batch
    found = extend(kernels, pool, query, rows, lengths, [count, count], tree_mask=longer)
    expected = []
    for b, row in enumerate(rows):
        before = lengths[b] - count
        for i in range(count):
            seen = [*range(before), *(before + j for j in range(count) if mask[b, i, j])]
            expected.append(pool.dense(query[b * count + i], row, seen))
    torch.testing.assert_close(found.double(), torch.stack(expected), atol=1e-5, rtol=1e-5)


def test_a_chain_as_a_tree_mask_is_causal(kernels: ModuleType) -> None:
    pool = Pool()
    query = pool.queries(8, 4)
    chain = torch.ones(4, 4, dtype=torch.bool).tril().repeat(2, 1, 1)
    plain = extend(kernels, pool, query, [0, 1], [20, 9], [4, 4])
    masked = extend(kernels, pool, query, [0, 1], [20, 9], [4, 4], tree_mask=chain)
    torch.testing.assert_close(plain, masked, atol=1e-6, rtol=1e-6)


def test_a_pool_in_half_precision_is_read_as_its_numbers(kernels: ModuleType) -> None:
    pool = Pool(dtype=torch.bfloat16)
    query = pool.queries(1, 2)
    found = decode(kernels, pool, query, [0], [40])
    torch.testing.assert_close(found[0].double(), pool.dense(query[0], 0, list(range(40))), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"logit_cap": 30.0}, "logit cap"), ({"cross": True}, "cross attention"), ({"window": 128}, "sliding window"),
        ({"sinks": torch.zeros(2)}, "sinks"), ({"k_scale": 0.5}, "scaled KV"), ({"encoder_lens": torch.ones(1)}, "cross attention"),
    ],
)  # fmt: skip
def test_attention_that_is_not_there_is_refused_by_name(kernels: ModuleType, asked: dict[str, Any], named: str) -> None:
    pool = Pool()
    with pytest.raises(NotImplementedError, match=named):
        decode(kernels, pool, pool.queries(1, 2), [0], [3], **asked)


def test_attention_that_is_not_causal_is_refused_by_name(kernels: ModuleType) -> None:
    pool = Pool()
    with pytest.raises(NotImplementedError, match="not causal"):
        extend(kernels, pool, pool.queries(2, 2), [0], [3], [2], is_causal=False)


def test_an_operator_that_is_not_there_can_be_imported_and_says_its_name_when_called(kernels: ModuleType) -> None:
    missing = kernels.fused_experts_cpu
    with pytest.raises(NotImplementedError, match=r"sgl_kernel\.fused_experts_cpu is not among the CPU stand-ins"):
        missing(torch.zeros(1), top_k=2)
