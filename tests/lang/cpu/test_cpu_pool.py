"""Bookkeeping of the KV pool against loops over single positions."""

from __future__ import annotations

from types import ModuleType

import torch

ROWS, LENGTHS = [2, 0, 1], [5, 0, 11]


def table() -> torch.Tensor:
    return torch.randperm(4 * 40, generator=torch.Generator().manual_seed(1)).view(4, 40).int()


def test_positions_get_the_next_slots_request_after_request(kernels: ModuleType) -> None:
    found, before = table(), table()
    start, end = torch.tensor(LENGTHS), torch.tensor(LENGTHS) + torch.tensor([3, 0, 2])
    kernels.assign_req_to_token_pool_cpu(torch.tensor(ROWS), found, start, end, torch.arange(100, 105), 40)
    assert found[2, 5:8].tolist() == [100, 101, 102] and found[1, 11:13].tolist() == [103, 104]
    found[2, 5:8], found[1, 11:13] = before[2, 5:8], before[1, 11:13]
    assert torch.equal(found, before)  # and nothing else


def test_slots_of_an_extension_are_read_in_the_same_order(kernels: ModuleType) -> None:
    pool = table()
    out = torch.full((12,), -1)
    start = torch.tensor(LENGTHS)
    kernels.assign_extend_cache_locs_cpu(torch.tensor(ROWS), pool, start, start + 4, out, 40)
    assert out.tolist() == [int(pool[row, n + i]) for row, n in zip(ROWS, LENGTHS, strict=True) for i in range(4)]


def test_draft_slots_follow_the_sequence_branch_after_branch(kernels: ModuleType) -> None:
    pool = table()
    out = torch.full((3 * 2 * 3,), -1)
    kernels.assign_draft_cache_locs_contiguous_cpu(torch.tensor(ROWS), pool, torch.tensor(LENGTHS), out, 40, 2, 3)
    expected = [int(pool[r, n + j * 3 + s]) for r, n in zip(ROWS, LENGTHS, strict=True) for j in range(2) for s in range(3)]
    assert out.tolist() == expected


def test_a_row_of_the_draft_table_is_the_sequence_and_then_one_branch(kernels: ModuleType) -> None:
    pool, topk, steps = table(), 3, 2
    found = kernels.build_draft_decode_metadata_cpu(pool, torch.tensor(ROWS), torch.tensor(LENGTHS), topk, steps, 40)
    assert found.shape == (9, max(LENGTHS) + steps)
    for b, (row, length) in enumerate(zip(ROWS, LENGTHS, strict=True)):
        for j in range(topk):
            own = [int(pool[row, length + j * steps + s]) for s in range(steps)]
            assert found[b * topk + j, : length + steps].tolist() == pool[row, :length].tolist() + own


def test_slots_of_accepted_nodes_come_in_order_and_the_rest_stays(kernels: ModuleType) -> None:
    out = torch.full((6,), -7)
    accepted = torch.tensor([[0, 2, -1], [4, -1, -1]], dtype=torch.int32)
    kernels.fill_accept_out_cache_loc_cpu(accepted, torch.arange(50, 60), out)
    assert out.tolist() == [50, 52, 54, -7, -7, -7]


def test_copying_slots_reads_all_before_it_writes_any(kernels: ModuleType) -> None:
    keys = torch.arange(40, dtype=torch.float32).view(8, 5)
    values = torch.arange(24, dtype=torch.int16).view(8, 3)
    expected = keys.clone(), values.clone()
    source, target = torch.tensor([1, 2, 3, 0]), torch.tensor([2, 3, 4, 7])  # a shift by one: slots are both read and written
    for tensor in expected:
        tensor[target] = tensor[source].clone()
    pointers = torch.tensor([keys.data_ptr(), values.data_ptr()])
    widths = torch.tensor([5 * 4, 3 * 2])
    kernels.copy_all_layer_kv_cache_cpu(pointers, widths, target, source)
    assert torch.equal(keys, expected[0]) and torch.equal(values, expected[1])


def test_the_bonus_is_the_last_committed_token(kernels: ModuleType) -> None:
    bonus = torch.zeros(3, dtype=torch.int32)
    kernels.fill_bonus_tokens_cpu(torch.arange(12, dtype=torch.int32).view(3, 4), torch.tensor([1, 4, 2]), bonus, 4)
    assert bonus.tolist() == [0, 7, 9]
