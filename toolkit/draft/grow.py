"""Grow: a draft tree out of a model's logits, level by level; one batched call of the model a level.

    weighed  a chain and what is likely beside it, as much as pays; nothing is drawn
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


Expand = Callable[[Sequence[Node]], Tensor]  # nodes -> logits [n, V] behind each of them, or what `read` takes in their place
Guesses = list[tuple[int, float]]  # tokens and their log-probabilities, the likeliest first
Read = Callable[[Tensor, int, float], list[Guesses]]  # (rows [n, ...], most guesses, temperature) -> guesses of every row


def likeliest(logits: Tensor, count: int, temperature: float) -> list[Guesses]:
    """The `count` likeliest tokens of every row of logits [n, V] at a temperature."""
    values, ids = torch.log_softmax(logits.float() / temperature, -1).topk(min(count, logits.shape[-1]), dim=-1)
    return [list(zip(*each, strict=True)) for each in zip(ids.tolist(), values.tolist(), strict=True)]


def likely(
    root: Tensor, expand: Expand, budget: Budget, *, width: int, floor: float, read: Read = likeliest
) -> DraftTree:  # fmt: skip
    """The `budget.nodes` likeliest paths. root: the row [V] behind the text, as `expand` gives them for nodes.

    width: most children of a node, and most nodes that are expanded in a level. floor: least joint probability of a node.
    """
    temperature = budget.sampling.temperature or 1.0
    pool: list[Node] = []
    rows: Tensor = root[None]
    parents: list[Node | None] = [None]
    for depth in range(budget.depth):
        level = _level(pool, parents, read(rows, min(width, budget.nodes), temperature), floor)
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


def weighed(levels: Sequence[Guesses], budget: Budget, *, floor: float) -> DraftTree:
    """The first guess of every level as a chain, the others beside it: those that the budget finds worth their rows."""
    assert budget.worth is not None
    found: list[tuple[float, int, int]] = []  # joint probability, level, token
    joint = 0.0
    for level, guesses in enumerate(levels):
        found += [(math.exp(joint + logprob), level, token) for token, logprob in guesses]
        joint += guesses[0][1]
    found.sort(key=lambda each: -each[0])  # stable: a guess stands behind the one that it follows
    found = [each for each in found if each[0] >= floor][: budget.reach]
    found = found[: budget.worth([chance for chance, _, _ in found], passes=len(levels))]
    chain = {level: node for node, (_, level, token) in enumerate(found) if token == levels[level][0][0]} | {-1: ROOT}
    return DraftTree(
        tuple(token for _, _, token in found), tuple(chain[level - 1] for _, level, _ in found), None,
        tuple(chance for chance, _, _ in found),
    )  # fmt: skip


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


def _level(pool: Sequence[Node], parents: Sequence[Node | None], found: Sequence[Guesses], floor: float) -> list[Node]:
    """The likeliest children of every parent, those below the floor left out."""
    level: list[Node] = []
    for parent, guesses in zip(parents, found, strict=True):
        for token, logprob in guesses:
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
