"""MedusaDrafter: heads on the last hidden row guess the next tokens at once; a tree of their likeliest combinations.

The heads do not see each other's guesses: a node's children are the next head's likeliest tokens whatever its own token is, and
a path's probability is the product of its tokens'. The budget takes the most probable paths.
In: committed tokens and hidden rows.   Out: a tree, or a chain of draws with their q.
Knows nothing about: how trees are verified, other sequences; it holds nothing but the last hidden row.
Invariants: head i guesses the token i+2 places behind the row; where a grammar forced tokens behind it, the heads of the places
that are known are skipped.
Source: 2401.10774; the tree is built for every step from the heads' own probabilities, as EAGLE-2 (2406.16858) does.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from toolkit.draft.card import find_head, is_published
from toolkit.draft.contract import Budget, Chances, Commit, Cost, Target
from toolkit.draft.medusa_file import load_medusa
from toolkit.draft.medusa_runner import MedusaRunner
from toolkit.draft.options import Options
from toolkit.draft.published import read_published_medusa
from toolkit.draft.tree import EMPTY, MOST_NODES, ROOT, DraftTree
from toolkit.sample.accept import dense, invert
from toolkit.sample.draw import generator


class MedusaSource:
    """Options: head (a folder of `toolkit train medusa` or of Medusa-1 heads, "" = the one that comes with the package), width (most children of a
    node, 6), floor (least joint probability, .02), draw (draw a chain from the heads at the request's temperature, False).
    """

    name = "medusa"
    needs_hidden = True
    lossy = False
    chances: Chances = "none"

    def __init__(self, target: Target, options: Mapping[str, Any]) -> None:
        given = Options(self.name, options)
        folder = given.text("head")
        self.width = given.count("width", 6, 1, MOST_NODES)
        self.floor = given.share("floor", 0.02)
        self.draw = given.flag("draw", False)
        given.end()
        found = find_head(self.name, folder, target.model, target.fingerprint)
        read = read_published_medusa if is_published(found) else load_medusa
        head = read(found, target.decoder.config, target.vocab_size)
        self.runner = MedusaRunner(head, target.decoder)
        self.vocab_size = target.vocab_size
        self.cost: Cost = self.runner.cost

    def open(self, seed: int) -> MedusaDrafter:
        """A drafter for one sequence; the seed decides its draws."""
        random = generator(seed) if self.draw else None
        return MedusaDrafter(self.runner, self.vocab_size, width=self.width, floor=self.floor, random=random)


class MedusaDrafter:
    """One sequence. random: what to draw with, None = the likeliest tokens."""

    def __init__(
        self, runner: MedusaRunner, vocab_size: int, *, width: int, floor: float, random: torch.Generator | None
    ) -> None:
        self._runner, self._vocab_size = runner, vocab_size
        self._width, self._floor, self._random = width, floor, random
        self._length = 0  # of the text
        self._row: Tensor | None = None  # the newest hidden row [D]
        self._place = -1  # of its token

    def observe(self, commit: Commit) -> None:
        """Remember the newest row."""
        self._length += len(commit.tokens)
        if commit.hidden is not None and len(commit.hidden):
            self._row, self._place = commit.hidden[-1], commit.start + len(commit.hidden) - 1

    def propose(self, budget: Budget) -> DraftTree:
        """A tree within the budget; EMPTY while no hidden row is known, or where tokens were forced past the last head."""
        known = self._length - 2 - self._place  # heads whose places are already text
        depth = min(budget.depth, self._runner.heads - known)
        if self._row is None or depth < 1 or budget.nodes < 1:
            return EMPTY
        logits = self._runner.logits(self._row, known, known + depth)
        if self._random is not None and budget.sampling.temperature > 0.0:
            return self._chain(logits[: budget.nodes], budget, self._random)
        temperature = budget.sampling.temperature or 1.0
        shares, places = torch.log_softmax(logits / temperature, -1).topk(min(self._width, logits.shape[-1]), dim=-1)
        tokens = [[self._runner.ids[place] for place in row] for row in places.tolist()]
        return combine(shares.tolist(), tokens, budget.nodes, self._floor)

    def close(self) -> None:
        """Nothing is held."""

    def _chain(self, logits: Tensor, budget: Budget, random: torch.Generator) -> DraftTree:
        q = torch.stack([dense(row, budget.sampling) for row in self._runner.widened(logits, self._vocab_size)])
        tokens = tuple(invert(row, random) for row in q)
        return DraftTree(tokens, tuple(range(ROOT, len(tokens) - 1)), q)


def combine(shares: Sequence[Sequence[float]], tokens: Sequence[Sequence[int]], nodes: int, floor: float) -> DraftTree:
    """The `nodes` likeliest paths of at least `floor`, parents first; shares[d]: falling log-probabilities of tokens[d] at depth d."""
    least = math.log(floor) if floor > 0.0 else -math.inf
    found: list[int] = []
    parents: list[int] = []
    # (minus joint log-probability, depth, rank at that depth, parent node)
    heap: list[tuple[float, int, int, int]] = [(-shares[0][0], 0, 0, ROOT)]
    while heap and len(found) < nodes:
        cost, depth, rank, parent = heapq.heappop(heap)
        if -cost < least or cost == math.inf:
            break
        node = len(found)
        found.append(tokens[depth][rank])
        parents.append(parent)
        if rank + 1 < len(shares[depth]):
            heapq.heappush(heap, (cost + shares[depth][rank] - shares[depth][rank + 1], depth, rank + 1, parent))
        if depth + 1 < len(shares):
            heapq.heappush(heap, (cost - shares[depth + 1][0], depth + 1, 0, node))
    return DraftTree(tuple(found), tuple(parents))
