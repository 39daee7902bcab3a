"""Bookkeeping of the KV pool: which slot holds which position of which request.

In: `req_to_token` [R, P], the slot of every position, one row a request; ranges of positions.   Out: written into the last tensor, or a
table. `pool_len` = P is what the compiled operators need to find a row; a tensor knows it.
Knows nothing about: what is in a slot.
"""

import ctypes

import torch


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Positions start..end of every request get the next slots of `out_cache_loc`, request after request."""
    taken = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True):
        req_to_token[row, start:end] = out_cache_loc[taken : taken + end - start].to(req_to_token.dtype)
        taken += end - start


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """The inverse: slots of positions start..end of every request, one after the other."""
    taken = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True):
        out_cache_loc[taken : taken + end - start] = req_to_token[row, start:end].to(out_cache_loc.dtype)
        taken += end - start


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Slots of the topk x num_steps positions after every request's sequence: branch 0's steps, branch 1's steps, ..."""
    count = topk * num_steps
    for i, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        out_cache_loc[i * count : (i + 1) * count] = req_to_token[row, length : length + count].to(out_cache_loc.dtype)


def build_draft_decode_metadata_cpu(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> torch.Tensor:
    """A table [B * topk, max length + num_steps] for drafting: row b * topk + j is request b's sequence, then branch j's own slots."""
    lengths = seq_lens.tolist()
    table = torch.zeros((len(lengths) * topk, max(lengths, default=0) + num_steps), dtype=req_to_token.dtype)
    for i, (row, length) in enumerate(zip(req_pool_indices.tolist(), lengths, strict=True)):
        branches = table[i * topk : (i + 1) * topk]
        branches[:, :length] = req_to_token[row, :length]
        branches[:, length : length + num_steps] = req_to_token[row, length : length + topk * num_steps].view(topk, num_steps)
    return table


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """Slots of the accepted nodes, in order; nodes that are -1 were not accepted."""
    accepted = accept_index.view(-1)
    accepted = accepted[accepted >= 0].long()
    accept_out_cache_loc[: accepted.numel()] = out_cache_loc[accepted].to(accept_out_cache_loc.dtype)


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """In every buffer (its address, its bytes a slot) copy slots src -> tgt, all read before any is written: the two may overlap."""
    sources, targets = src_loc.tolist(), tgt_loc.tolist()
    for base, width in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        held = [ctypes.string_at(base + slot * width, width) for slot in sources]
        for slot, data in zip(targets, held, strict=True):
            ctypes.memmove(base + slot * width, data, width)
