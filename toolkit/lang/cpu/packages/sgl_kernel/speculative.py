import torch


def reconstruct_indices_from_tree_mask(
    tree_mask, verified_seq_len, positions, retrieve_index, retrieve_next_token, retrieve_next_sibling, bs, n
):
    m = tree_mask.view(-1)[: bs * n * n].view(bs, n, n).bool()
    anc = m & torch.ones(n, n, dtype=torch.bool).tril(-1)
    j = torch.arange(n)
    positions.view(-1)[: bs * n] = (anc.sum(-1) + verified_seq_len[:, None]).view(-1).to(positions.dtype)
    retrieve_index.view(-1)[: bs * n] = torch.arange(bs * n)
    parent = torch.where(anc, j, -1).max(-1).values
    child = torch.where(anc, j[:, None], n).min(1).values  # first k with tid as ancestor
    same = (parent[:, :, None] == parent[:, None]) & (parent[:, :, None] >= 0) & (j[None, :] > j[:, None])
    sib = torch.where(same, j, n).min(-1).values
    retrieve_next_token.view(-1)[: bs * n] = torch.where(child < n, child, -1).view(-1)
    retrieve_next_sibling.view(-1)[: bs * n] = torch.where(sib < n, sib, -1).view(-1)
