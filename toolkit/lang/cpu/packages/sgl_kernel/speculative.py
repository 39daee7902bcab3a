"""The tree of an n-gram draft: from its mask to links and positions. `sgl_kernel.tree` says what the arrays hold."""

import torch


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """`tree_mask` [B x N x N, flat]: row i is true at i and at its ancestors, which all have smaller numbers.

    A node's parent is its ancestor of the largest number. Writes the first B x N entries of the other four.
    """
    n, count = draft_token_num, batch_size * draft_token_num
    number = torch.arange(n)
    above = tree_mask.view(-1)[: count * n].view(batch_size, n, n).bool() & (number < number[:, None])  # [B, node, ancestor]
    parent = torch.where(above, number, -1).amax(-1)  # [B, N]
    positions.view(-1)[:count] = (above.sum(-1) + verified_seq_len.view(-1, 1)).flatten().to(positions.dtype)
    retrieve_index.view(-1)[:count] = torch.arange(count)
    child = parent[:, :, None] == number  # [B, node, its parent]
    first_child = torch.where(child, number[:, None], n).amin(1)
    sibling = (parent[:, :, None] == parent[:, None]) & (parent[:, :, None] >= 0) & (number > number[:, None])
    next_sibling = torch.where(sibling, number, n).amin(-1)
    for links, found in ((retrieve_next_token, first_child), (retrieve_next_sibling, next_sibling)):
        links.view(-1)[:count] = torch.where(found < n, found, -1).flatten()
