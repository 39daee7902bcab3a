"""Grow: a draft tree out of a model's logits, level by level; one batched call of the model a level.

    likely   the paths of the highest joint probability under the node budget; nothing is drawn
    drawn    children drawn from the model's distribution, siblings without replacement; every draw is kept, with its q

In: the logits behind the last committed token, and `expand(nodes)`, which gives those behind some drafted nodes.
Out: a DraftTree.
Knows nothing about: models, caches, how trees are verified.
Invariants: a node is expanded at most once, after its parent. Whether and how often a node is drawn from depends only on what
was drawn before, never on the draw itself, so each child has exactly the distribution that its row of q says.
Source: trees by joint probability as in EAGLE-2 (2406.16858, section 4); draws without replacement 2402.14160.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from toolkit.draft.contract import Budget
from toolkit.draft.tree import EMPTY, ROOT, DraftTree
from toolkit.sample.accept import dense, invert


@dataclass(frozen=True, slots=True)
class Node:
    """A guess: its token, the tokens from the root down to it, and their joint log-probability under the draft model."""

    number: int
    parent: int
    token: int
    path: tuple[int, ...]
    logprob: float


Expand = Callable[[Sequence[Node]], Tensor]  # nodes -> logits [n, V] behind each of them


def likely(root: Tensor, expand: Expand, budget: Budget, *, width: int, floor: float) -> DraftTree:
    """The `budget.nodes` likeliest paths. root: logits [V].

    width: most children of a node, and most nodes that are expanded in a level. floor: least joint probability of a node.
    """
    temperature = budget.sampling.temperature or 1.0
    pool: list[Node] = []
    rows: Tensor = root[None]
    parents: list[Node | None] = [None]
    for depth in range(budget.depth):
        level = _level(pool, parents, torch.log_softmax(rows.float() / temperature, -1), min(width, budget.nodes), floor)
        pool += level
        best = {node.number for node in _best(pool, budget.nodes)}
        expanded = _best([node for node in level if node.number in best], width)
        if not expanded or depth + 1 == budget.depth:
            break
        parents = list(expanded)
        rows = expand(expanded)
    chosen = sorted(_best(pool, budget.nodes), key=lambda node: node.number)
    place = {node.number: i for i, node in enumerate(chosen)} | {ROOT: ROOT}
    return DraftTree(tuple(node.token for node in chosen), tuple(place[node.parent] for node in chosen))


def drawn(root: Tensor, expand: Expand, budget: Budget, random: torch.Generator, *, width: int, floor: float) -> DraftTree:
    """A tree of draws at the request's temperature and filters, with q [N, V] float64.

    The budget is spread evenly over the levels; within one the likeliest parents draw first, one child a turn.
    """
    pool: list[Node] = []
    q: list[Tensor] = []
    rows: Tensor = root[None]
    parents: list[Node | None] = [None]
    for depth in range(budget.depth):
        left = budget.nodes - len(pool)
        quota = min(left, max(1, left // (budget.depth - depth)))
        level = _draws(pool, parents, [dense(row, budget.sampling) for row in rows], quota, width, random, q)
        pool += level
        expanded = [node for node in _best(level, len(level)) if node.logprob >= _log(floor)]
        if not expanded or len(pool) == budget.nodes or depth + 1 == budget.depth:
            break
        parents = list(expanded)
        rows = expand(expanded)
    if not pool:
        return EMPTY
    return DraftTree(tuple(node.token for node in pool), tuple(node.parent for node in pool), torch.stack(q))


def _level(pool: Sequence[Node], parents: Sequence[Node | None], logprobs: Tensor, width: int, floor: float) -> list[Node]:
    """The likeliest children of every parent, those below the floor left out."""
    values, ids = logprobs.topk(min(width, logprobs.shape[-1]), dim=-1)
    level: list[Node] = []
    for parent, row, tokens in zip(parents, values.tolist(), ids.tolist(), strict=True):
        for logprob, token in zip(row, tokens, strict=True):
            node = _child(len(pool) + len(level), parent, token, logprob)
            if node.logprob >= _log(floor) and node.logprob > -math.inf:
                level.append(node)
    return level


def _draws(
    pool: Sequence[Node], parents: Sequence[Node | None], rows: list[Tensor], quota: int, width: int,
    random: torch.Generator, q: list[Tensor],
) -> list[Node]:  # fmt: skip
    """Up to `quota` children, up to `width` a parent; appends to q what each was drawn from."""
    level: list[Node] = []
    for _ in range(width):
        for place, parent in enumerate(parents):
            mass = float(rows[place].sum())
            if len(level) == quota or mass <= 0.0:
                continue
            row = rows[place] / mass
            token = invert(row, random)
            q.append(row)
            level.append(_child(len(pool) + len(level), parent, token, math.log(float(row[token]))))
            rows[place] = row.clone()
            rows[place][token] = 0.0
    return level


def _child(number: int, parent: Node | None, token: int, logprob: float) -> Node:
    if parent is None:
        return Node(number, ROOT, token, (token,), logprob)
    return Node(number, parent.number, token, (*parent.path, token), parent.logprob + logprob)


def _best(nodes: Sequence[Node], count: int) -> list[Node]:
    """The likeliest nodes; of equals the earlier, so that a parent never stands behind its children."""
    return sorted(nodes, key=lambda node: (-node.logprob, node.number))[:count]


def _log(share: float) -> float:
    return math.log(share) if share > 0.0 else -math.inf
