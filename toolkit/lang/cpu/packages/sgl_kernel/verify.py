"""Verification of a tree of draft tokens against the target's predictions, one request after the other.

In: `candidates` [B, N], the tokens of the nodes, and their links (`sgl_kernel.tree`).
Out, written: `accept_index` [B, D], rows of the accepted nodes, the root first, then -1; `accept_token_num` [B], how many of them are drafts;
`predicts` [B x N], at the row of each accepted node the token that follows it: the next accepted one, and at the last the new one.
Knows nothing about: models.
Invariants: what is committed is distributed as the target alone would have it: its argmax, or a draw from its probabilities.
Source: Leviathan et al. 2211.17192 for a draft without probabilities, the same rule over siblings (2305.09781).
"""

import torch


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """A node is accepted if it is the target's argmax [B, N] after its parent."""
    target = target_predict.reshape(-1)
    for b in range(candidates.shape[0]):
        tree = _Tree(b, candidates, retrive_index, retrive_next_token, retrive_next_sibling)
        node = 0
        path = [tree.rows[0]]
        while len(path) < accept_index.shape[1]:
            wanted = int(target[path[-1]])
            child = next((child for child in tree.children(node) if tree.tokens[child] == wanted), None)
            if child is None:
                break
            node = child
            path.append(tree.rows[node])
        _commit(b, path, target[path].tolist(), predicts, accept_index, accept_token_num)


def tree_speculative_sampling_target_only(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Sampling without the draft's probabilities: a node takes its share `target_probs` [B, N, V] of the coin of its parent.

    `uniform_samples` [B, N] holds a coin for every node, thrown over its children; `uniform_samples_for_final_sampling` [B] draws the new
    token from what the target has left beside the refused children. `draft_probs` is scratch space of the compiled kernel, not read.
    Thresholds below 1 accept more than the target would (lossy) and are refused.
    """
    if threshold_single != 1.0 or threshold_acc != 1.0:
        raise NotImplementedError("accept thresholds below 1 are lossy and not among the CPU stand-ins of sgl_kernel")
    for b in range(candidates.shape[0]):
        tree = _Tree(b, candidates, retrive_index, retrive_next_token, retrive_next_sibling)
        coins = uniform_samples[b].tolist()
        node, path, tokens = 0, [tree.rows[0]], []
        left = target_probs[b, 0].double()
        while len(path) < accept_index.shape[1]:
            child, left = _thrown(coins[node], tree, node, target_probs[b, node].double())
            if child is None:
                break
            node = child
            path.append(tree.rows[node])
            tokens.append(tree.tokens[node])
            left = target_probs[b, node].double()
        tokens.append(_drawn(float(uniform_samples_for_final_sampling[b]), left))
        _commit(b, path, tokens, predicts, accept_index, accept_token_num)


class _Tree:
    """One request's tree in plain lists."""

    def __init__(self, b: int, tokens: torch.Tensor, rows: torch.Tensor, first: torch.Tensor, sibling: torch.Tensor) -> None:
        batch = tokens.shape[0]
        self.tokens, self.rows, self._first, self._sibling = (
            part.reshape(batch, -1)[b].tolist() for part in (tokens, rows, first, sibling)
        )

    def children(self, node: int) -> list[int]:
        found = []
        child = self._first[node]
        while child >= 0:
            found.append(child)
            child = self._sibling[child]
        return found


def _thrown(coin: float, tree: _Tree, node: int, probs: torch.Tensor) -> tuple[int | None, torch.Tensor]:
    """The child whose share of [0, 1) the coin fell into, and the probabilities without the children refused before it."""
    taken, last = 0.0, None
    left = probs.clone()
    for child in tree.children(node):
        token = tree.tokens[child]
        share = float(left[token])  # a token that a sibling had before has nothing left
        taken += share
        if coin < taken:
            return child, left
        last = child if share > 0.0 else last
        left[token] = 0.0
    if last is not None and not bool(left.any()):
        return last, left  # the children have all of it, and only rounding let the coin pass the last of them
    return None, left


def _drawn(coin: float, left: torch.Tensor) -> int:
    """A token drawn from what is left, which need not add up to one."""
    mass = torch.cumsum(left, 0)
    found = int(torch.searchsorted(mass, coin * float(mass[-1]), right=True))
    return min(found, int(torch.nonzero(left)[-1]))  # rounding must not lead past the last token that can be


def _commit(
    b: int,
    path: list[int],
    tokens: list[int],
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
) -> None:
    accept_index[b, : len(path)] = torch.tensor(path, dtype=accept_index.dtype)
    accept_token_num[b] = len(path) - 1
    predicts[path] = torch.tensor(tokens, dtype=predicts.dtype)


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, accept_stride: int
) -> None:
    """The last committed token of every request: entry `accept_lens[b] - 1` of its `accept_stride` tokens."""
    last = torch.arange(accept_lens.numel()) * accept_stride + accept_lens.long() - 1
    bonus_tokens.copy_(accept_tokens.view(-1)[last])
