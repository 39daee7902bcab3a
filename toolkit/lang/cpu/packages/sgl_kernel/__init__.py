"""Pure-torch stand-in for the sgl_kernel CPU build (which PyPI does not carry
and which needs AVX512/AMX).  It has only what SGLang 0.5.23 imports or calls on
`--device cpu` for a dense Llama-like model without AMX.  The two attention ops
let `--prefill/decode-attention-backend intel_amx` run anywhere."""

import ctypes

import torch
import torch.nn.functional as F

__version__ = "0.0.cpu-stub"


# ---------------------------------------------------------------- attention
def _attend(q, k_buf, v_buf, idx, mask, scale):
    """q [B,n,H,D]; idx [B,L] rows of the KV pool; mask [B,n,L] bool or None."""
    B, n, H, D = q.shape
    k = k_buf[idx].transpose(1, 2)  # [B,Hkv,L,D]
    v = v_buf[idx].transpose(1, 2)
    if k.dtype != q.dtype:
        k, v = k.to(q.dtype), v.to(q.dtype)
    Hkv = k.shape[1]
    G = H // Hkv
    qq = q.view(B, n, Hkv, G, D).permute(0, 2, 3, 1, 4).reshape(B, Hkv, G * n, D)
    m = None
    if mask is not None:
        L = idx.shape[1]
        m = mask[:, None, None].expand(B, 1, G, n, L).reshape(B, 1, G * n, L)
    o = F.scaled_dot_product_attention(qq, k, v, attn_mask=m, scale=scale)
    return o.view(B, Hkv, G, n, -1).permute(0, 3, 1, 2, 4).reshape(B, n, H, -1)


def _check(logit_cap, is_cross, window, encoder_lens, sinks):
    if logit_cap or is_cross or window > 0 or encoder_lens is not None or sinks is not None:
        raise NotImplementedError("sgl_kernel CPU stub: plain causal attention only")


def decode_attention_cpu(
    q,
    k_buf,
    v_buf,
    k_scale,
    v_scale,
    out,
    k,
    v,
    loc,
    attn_logits,
    req_to_token,
    req_pool_indices,
    seq_lens,
    scale,
    logit_cap,
    is_cross,
    window,
    encoder_lens,
    sinks=None,
):
    _check(logit_cap, is_cross, window, encoder_lens, sinks)
    if k is not None:
        k_buf[loc] = k.view(-1, *k_buf.shape[1:])
        v_buf[loc] = v.view(-1, *v_buf.shape[1:])
    L = int(seq_lens.max())
    idx = req_to_token[req_pool_indices, :L].long()
    mask = None
    if q.shape[0] > 1:
        mask = (torch.arange(L) < seq_lens[:, None])[:, None]
        idx = idx.masked_fill(~mask[:, 0], 0)
    out.copy_(_attend(q[:, None], k_buf, v_buf, idx, mask, scale)[:, 0])


def extend_attention_cpu(
    q,
    k,
    v,
    out,
    k_buf,
    v_buf,
    k_scale,
    v_scale,
    req_to_token,
    req_pool_indices,
    seq_lens,
    extend_lens,
    extend_start,
    max_extend,
    scale,
    logit_cap,
    is_cross,
    window,
    encoder_lens,
    sinks=None,
    tree_mask=None,
    is_causal=True,
):
    _check(logit_cap, is_cross, window, encoder_lens, sinks)
    lens, ext = seq_lens.tolist(), extend_lens.tolist()
    if len(set(ext)) == 1 and ext[0] * len(ext) <= 64:  # many short extends: one call
        groups = [list(range(len(ext)))]
    else:
        groups = [[i] for i in range(len(ext))]
    row = 0
    for g in groups:
        n, B, L = ext[g[0]], len(g), max(lens[i] for i in g)
        if n == 0:
            continue
        sl = seq_lens[g]
        idx = req_to_token[req_pool_indices[g], :L].long()
        kv = torch.arange(L)
        idx = idx.masked_fill(kv >= sl[:, None], 0)
        first = (sl - n)[:, None, None]  # committed prefix length
        if tree_mask is not None:
            mask = kv < first.expand(B, n, 1)
            t = tree_mask.view(-1)[row * n : (row + B * n) * n].view(B, n, n).bool()
            mask = mask.expand(B, n, L).clone()
            for b, i in enumerate(g):
                p = lens[i] - n
                mask[b, :, p : p + n] = t[b]
        elif is_causal:
            mask = kv <= first + torch.arange(n)[:, None]
        else:
            mask = (kv < sl[:, None, None]).expand(B, n, L)
        o = _attend(q[row : row + B * n].view(B, n, *q.shape[1:]), k_buf, v_buf, idx, mask, scale)
        out[row : row + B * n] = o.reshape(B * n, *out.shape[1:])
        row += B * n


torch.ops.sgl_kernel.decode_attention_cpu = decode_attention_cpu
torch.ops.sgl_kernel.extend_attention_cpu = extend_attention_cpu


# ------------------------------------------------------- KV-pool bookkeeping
def assign_req_to_token_pool_cpu(req_pool_indices, req_to_token, start, end, out_cache_loc, pool_len):
    pos = 0
    for r, s, e in zip(req_pool_indices.tolist(), start.tolist(), end.tolist()):
        req_to_token[r, s:e] = out_cache_loc[pos : pos + e - s].to(req_to_token.dtype)
        pos += e - s


def assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, start, end, out, pool_len):
    pos = 0
    for r, s, e in zip(req_pool_indices.tolist(), start.tolist(), end.tolist()):
        out[pos : pos + e - s] = req_to_token[r, s:e].to(out.dtype)
        pos += e - s


def assign_draft_cache_locs_contiguous_cpu(req_pool_indices, req_to_token, seq_lens, out, pool_len, topk, steps):
    n = topk * steps
    for i, (r, s) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist())):
        out[i * n : (i + 1) * n] = req_to_token[r, s : s + n].to(out.dtype)


def build_draft_decode_metadata_cpu(req_to_token, req_pool_indices, seq_lens, topk, steps, pool_len):
    lens = seq_lens.tolist()
    table = torch.zeros((len(lens) * topk, max(lens) + steps), dtype=req_to_token.dtype)
    for i, (r, s) in enumerate(zip(req_pool_indices.tolist(), lens)):
        for j in range(topk):
            table[i * topk + j, :s] = req_to_token[r, :s]
            table[i * topk + j, s : s + steps] = req_to_token[r, s + j * steps : s + (j + 1) * steps]
    return table


def copy_all_layer_kv_cache_cpu(data_ptrs, strides, tgt_loc, src_loc):
    tgt, src = tgt_loc.tolist(), src_loc.tolist()
    for p, w in zip(data_ptrs.tolist(), strides.tolist()):
        rows = [ctypes.string_at(p + s * w, w) for s in src]
        for t, r in zip(tgt, rows):
            ctypes.memmove(p + t * w, r, w)


# ------------------------------------------------------- speculative decoding
def fill_bonus_tokens_cpu(accept_tokens, accept_lens, bonus, stride):
    row = torch.arange(accept_lens.numel())
    bonus.copy_(accept_tokens.view(-1)[row * stride + accept_lens.long() - 1])


def fill_accept_out_cache_loc_cpu(accept_index, out_cache_loc, accept_out):
    src = accept_index.view(-1)
    src = src[src > -1].long()
    accept_out[: src.numel()] = out_cache_loc[src]


def rotate_input_ids_cpu(input_ids, start_loc, lens, topk_index, select_index=None):
    new = topk_index.view(-1)
    for i, (s, n) in enumerate(zip(start_loc.tolist(), lens.tolist())):
        if n:
            input_ids[s : s + n - 1] = input_ids[s + 1 : s + n].clone()
            last = s + n - 1 if select_index is None else int(select_index[i])
            input_ids[last] = new[i]


def build_tree_kernel_efficient_cpu(
    parent_list, selected, seq_lens, tree_mask, positions, retrieve_index, next_token, next_sibling, topk, depth, n, mode
):
    """Port of sgl_build_tree_kernel_efficient_triton (QLEN_ONLY mask)."""
    assert int(mode) == 1, "CPU verify uses the QLEN_ONLY tree mask"
    mask = tree_mask.view(-1)[: seq_lens.numel() * n * n].view(-1, n, n)
    mask.zero_()
    pos, ri = positions.view(-1, n), retrieve_index.view(-1, n)
    nt, ns = next_token.view(-1, n), next_sibling.view(-1, n)
    parents = parent_list.tolist()
    for b, (sel, L) in enumerate(zip(selected.tolist(), seq_lens.tolist())):

        def parent(node):  # node 1..n-1 -> parent node, None if dangling
            tb = sel[node - 1] // topk
            if tb == 0:
                return 0
            tok = parents[b][tb]
            return sel.index(tok) + 1 if tok in sel else None

        nxt, sib = nt[b].tolist(), ns[b].tolist()
        for i in range(n - 1, 0, -1):
            p = parent(i)
            if p is not None:
                if nxt[p] != -1:
                    sib[i] = nxt[p]
                nxt[p] = i
        nt[b], ns[b] = torch.tensor(nxt), torch.tensor(sib)
        ri[b] = torch.arange(b * n, (b + 1) * n)
        mask[b, :, 0] = True
        pos[b, 0] = L
        for i in range(1, n):
            cur, d = i, 0
            while cur and d < depth:
                mask[b, i, cur] = True
                d += 1
                cur = parent(cur)
            pos[b, i] = L + d


def verify_tree_greedy_cpu(
    predicts,
    accept_index,
    accept_token_num,
    candidates,
    retrive_index,
    retrive_next_token,
    retrive_next_sibling,
    target_predict,
):
    bs, n = candidates.shape
    target = target_predict.reshape(-1).tolist()
    cand, ri = candidates.tolist(), retrive_index.view(bs, -1).tolist()
    nt, ns = retrive_next_token.view(bs, -1).tolist(), retrive_next_sibling.view(bs, -1).tolist()
    for b in range(bs):
        last, cur, acc = ri[b][0], 0, 0
        accept_index[b, 0] = last
        for _ in range(1, accept_index.shape[1]):
            cur = nt[b][cur]
            while cur != -1 and cand[b][cur] != target[last]:
                cur = ns[b][cur]
            if cur == -1:
                break
            predicts[last] = target[last]
            acc += 1
            last = ri[b][cur]
            accept_index[b, acc] = last
        accept_token_num[b] = acc
        predicts[last] = target[last]


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*a, **k):
        raise NotImplementedError(f"sgl_kernel.{name} is not in the CPU stub")

    missing.__name__ = name
    return missing
