"""Attention over the paged KV pool: one new token a request (decode) or several (extend), causal or along a token tree.

In: queries [T, H, D]; the pool's keys [S, Hkv, D] and values [S, Hkv, Dv]; a table [R, P] of slots, one row a request.
Out: written into `out` [T, H, Dv].
Knows nothing about: layers, models, who wrote the pool.
Invariants: a request's output depends on its own rows only, so that it is the same alone and in a batch; the score matrix in memory is
never larger than [H, BLOCK, L].
Source: scaled dot products, 1706.03762 eq. 1; grouped heads, 2305.13245. A block of queries at a time is faster here than torch's fused
attention, which copies masks and pads the batch.
"""

from typing import Any

import torch

BLOCK = 64  # query rows a block


def decode_attention_cpu(
    query: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    out: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    loc: torch.Tensor,
    attn_logits: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Any,
    sinks: Any = None,
) -> None:
    """Query b [H, D] sees the first seq_lens[b] slots of its row; `key` and `value` [B, Hkv, D], if given, are stored at `loc` before."""
    _refuse(logit_cap, is_cross_attn, sliding_window_size, encoder_lens, sinks, k_scale, v_scale)
    if key is not None and value is not None:
        k_buffer[loc] = key.view(-1, *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[loc] = value.view(-1, *v_buffer.shape[1:]).to(v_buffer.dtype)
    for b, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        slots = req_to_token[row, :length]
        out[b] = _attend(query[b : b + 1], k_buffer, v_buffer, slots, None, sm_scale)[0]


def extend_attention_cpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    extend_start_loc: torch.Tensor,
    max_len_extend: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Any,
    sinks: Any = None,
    tree_mask: torch.Tensor | None = None,
    is_causal: bool = True,
) -> None:
    """The last n = extend_seq_lens[b] of a request's seq_lens[b] slots are its queries, out[start:start + n], already in the pool.

    Each sees everything before the extension and, within it, what is causal; with `tree_mask` (requests one after the other, n x n
    each, flat) what its row there says.
    """
    _refuse(logit_cap, is_cross_attn, sliding_window_size, encoder_lens, sinks, k_scale, v_scale)
    if not is_causal:
        raise NotImplementedError("attention that is not causal is not among the CPU stand-ins of sgl_kernel")
    begin = 0
    plan = zip(req_pool_indices.tolist(), seq_lens.tolist(), extend_seq_lens.tolist(), extend_start_loc.tolist(), strict=True)
    for row, length, n, start in plan:
        seen = None
        if tree_mask is not None:
            seen = tree_mask.view(-1)[begin : begin + n * n].view(n, n).bool()
            begin += n * n
        slots = req_to_token[row, :length]
        out[start : start + n] = _attend(query[start : start + n], k_buffer, v_buffer, slots, seen, sm_scale)


def _attend(
    query: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    slots: torch.Tensor,
    seen: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """[n, H, D] queries at the last n of the slots -> [n, H, Dv]; `seen` [n, n] is what they see of each other, None is causal."""
    n, heads, width = query.shape
    keys = k_buffer.index_select(0, slots).transpose(0, 1).to(query.dtype)  # [Hkv, L, D]
    values = v_buffer.index_select(0, slots).transpose(0, 1).to(query.dtype)
    groups, kv_heads, before = heads // keys.shape[0], keys.shape[0], slots.shape[0] - n
    out = query.new_empty(n, heads, values.shape[-1])
    for a in range(0, n, BLOCK):
        b = min(a + BLOCK, n)
        end = before + (b if seen is None else n)  # keys that some query of the block sees
        if seen is None:
            hidden = torch.ones(b - a, b - a, dtype=torch.bool).triu_(1)
            first = before + a
        else:
            hidden, first = ~seen[a:b], before
        rows = (query[a:b] * scale).view(b - a, kv_heads, groups, width).permute(1, 2, 0, 3).reshape(kv_heads, -1, width)
        scores = torch.bmm(rows, keys[:, :end].transpose(1, 2)).view(kv_heads, groups, b - a, end)
        if n > 1:
            scores[..., first:].masked_fill_(hidden, float("-inf"))
        weights = torch.softmax(scores, -1).view(kv_heads, -1, end)
        mixed = torch.bmm(weights, values[:, :end]).view(kv_heads, groups, b - a, -1)
        out[a:b] = mixed.permute(2, 0, 1, 3).reshape(b - a, heads, -1)
    return out


def _refuse(
    logit_cap: float, is_cross_attn: bool, window: int, encoder_lens: Any, sinks: Any, k_scale: float, v_scale: float
) -> None:
    asked = {
        "a logit cap": bool(logit_cap),
        "cross attention": is_cross_attn or encoder_lens is not None,
        "a sliding window": window > 0,
        "attention sinks": sinks is not None,
        "a scaled KV cache": k_scale != 1.0 or v_scale != 1.0,
    }
    for what, wanted in asked.items():
        if wanted:
            raise NotImplementedError(f"attention with {what} is not among the CPU stand-ins of sgl_kernel")
