"""Trees of draft tokens: from what drafting scored to links, positions and masks.

Nodes of a request's tree: 0 is the root, the last token that is certain; nodes 1..N-1 are chosen candidates in ascending order.
Candidates are numbered as drafting makes them: topk in the first step, topk x topk in each later one.
Links are in three arrays: `retrieve_index` (the node's row in the batch), `next_token` (first child), `next_sibling`; -1 = none.
Knows nothing about: tokens and probabilities.
Source: EAGLE-2 (2406.16858) section 4; the encoding is that of SGLang's verification kernels.
"""

import torch

QLEN_ONLY = 1  # SGLang's TreeMaskMode for a mask among the tree's nodes alone, the only one that its CPU attention reads


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """`selected_index` [B, N-1] are the chosen candidates, `parent_list` [B, ...] the parent candidate of each group of topk.

    Writes `tree_mask` [B x N x N, flat]: row i is true at i, at its ancestors and at the root; `positions` [B x N]: the root's is the
    length of the sequence, each level adds one. The three link arrays come in filled with -1. A node whose parent was not chosen (equal
    scores can do that) hangs in the air: nothing links to it, so it is never accepted.
    """
    if int(tree_mask_mode) != QLEN_ONLY:
        raise NotImplementedError(f"tree mask mode {int(tree_mask_mode)} is not among the CPU stand-ins: only {QLEN_ONLY} is")
    n, batch = draft_token_num, verified_seq_len.numel()
    masks = tree_mask.view(-1)[: batch * n * n].view(batch, n, n)
    masks.zero_()
    rows = torch.arange(batch * n).view(batch, n)
    retrieve_index.view(batch, n).copy_(rows)
    lengths = verified_seq_len.tolist()
    for b, (chosen, groups) in enumerate(zip(selected_index.tolist(), parent_list.tolist(), strict=True)):
        node_of = {candidate: node for node, candidate in enumerate(chosen, 1)}
        parents = [-1, *(_parent(candidate // topk, groups, node_of) for candidate in chosen)]
        _link(parents, retrieve_next_token.view(batch, n)[b], retrieve_next_sibling.view(batch, n)[b])
        for node in range(n):
            path = _path(node, parents, depth)
            masks[b, node, [0, *path]] = True
            positions.view(batch, n)[b, node] = lengths[b] + len(path)


def _parent(group: int, groups: list[int], node_of: dict[int, int]) -> int:
    """The parent node of a candidate of that group: the root for the first, -1 where it was not chosen."""
    return 0 if group == 0 else node_of.get(groups[group], -1)


def _path(node: int, parents: list[int], depth: int) -> list[int]:
    """The node and its ancestors below the root, at most `depth` of them."""
    path: list[int] = []
    while node > 0 and len(path) < depth:
        path.append(node)
        node = parents[node]
    return path


def _link(parents: list[int], next_token: torch.Tensor, next_sibling: torch.Tensor) -> None:
    """Children of a node form a list in ascending order."""
    last: dict[int, int] = {}
    for node, parent in enumerate(parents):
        if parent < 0:
            continue
        if parent in last:
            next_sibling[last[parent]] = node
        else:
            next_token[parent] = node
        last[parent] = node
