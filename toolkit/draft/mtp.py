"""MtpDrafter: a head that looks at the target's hidden rows guesses on, token after token, as a tree.

    place p   takes the hidden row of token p and the embedding of token p+1, and guesses token p+2

Committed places are computed once, from the target's own rows, and stay in the head's cache. Drafted places feed on the head's
own output; they lie in scratch slots behind and are cut off again. A token that a grammar forced, whose row the target has
not computed yet, is a drafted place too.
In: committed tokens and hidden rows.   Out: a tree of the likeliest continuations, or drawn ones with their q.
Knows nothing about: how trees are verified, other sequences.
Invariants: between two proposals the table holds the places whose rows are known, and nothing else. Places without a row (found in
the prefix cache) are absent: the head then sees less, which costs acceptance and nothing else.
Source: 2401.15077 (EAGLE), 2412.19437 section 2.2; trees by joint probability 2406.16858.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toolkit.draft.card import find_head, is_published
from toolkit.draft.contract import Budget, Chances, Commit, Cost, Target
from toolkit.draft.grow import Node, drawn, likely
from toolkit.draft.mtp_file import load_mtp
from toolkit.draft.mtp_runner import MtpRunner
from toolkit.draft.options import Options
from toolkit.draft.published import read_published_mtp
from toolkit.draft.slots import RowLists, Slots
from toolkit.draft.tree import EMPTY, MOST_NODES, DraftTree
from toolkit.kv.table import BlockTable
from toolkit.sample.draw import generator

CHUNK = 256  # places of a prompt in one pass
KV_TOKENS = 1 << 15  # room for all sequences together; memory is used only where something was written
MOST_KV_TOKENS = 1 << 22


class MtpSource:
    """Options: head (a folder of `toolkit train mtp` or in a layout of published.py, "" = the one that comes with the package), width (most children of a
    node, 4; 1 = chain), floor (least joint probability, .05), draw (draw from the head at the request's temperature instead of
    taking its likeliest tokens, False), kv_tokens (room for all sequences together).
    """

    name = "mtp"
    needs_hidden = True
    lossy = False
    chances: Chances = "none"

    def __init__(self, target: Target, options: Mapping[str, Any]) -> None:
        given = Options(self.name, options)
        folder = given.text("head")
        self.width = given.count("width", 4, 1, MOST_NODES)
        self.floor = given.share("floor", 0.05)
        self.draw = given.flag("draw", False)
        tokens = given.count("kv_tokens", KV_TOKENS, CHUNK, MOST_KV_TOKENS)
        given.end()
        found = find_head(self.name, folder, target.model, target.fingerprint)
        read = read_published_mtp if is_published(found) else load_mtp
        head = read(found, target.decoder.config, target.vocab_size)
        self.runner = MtpRunner(head, target.decoder, tokens)
        self.vocab_size = target.vocab_size
        self.cost: Cost = self.runner.cost

    def open(self, seed: int) -> MtpDrafter:
        """A drafter for one sequence; the seed decides its draws."""
        random = generator(seed) if self.draw else None
        return MtpDrafter(self.runner, self.vocab_size, width=self.width, floor=self.floor, random=random)


class MtpDrafter:
    """One sequence. random: what to draw with, None = the likeliest tokens."""

    def __init__(self, runner: MtpRunner, vocab_size: int, *, width: int, floor: float, random: torch.Generator | None) -> None:
        self._runner, self._vocab_size = runner, vocab_size
        self._width, self._floor, self._random = width, floor, random
        self._table: BlockTable = runner.table()
        self._trunk: Slots = np.empty(0, np.int32)  # slots of the committed places, in the table's order
        self._text: list[int] = []
        self._rows: list[tuple[int, Tensor]] = []  # hidden rows that are not computed yet: place of the first, rows
        self._place = -1  # the last committed place
        self._feature: Tensor | None = None  # [D], what the head gave there

    def observe(self, commit: Commit) -> None:
        """Text and rows grow; they are computed at the next proposal, so that one pass does for both."""
        self._text += commit.tokens
        if commit.hidden is not None and len(commit.hidden):
            self._rows.append((commit.start, commit.hidden))

    def propose(self, budget: Budget) -> DraftTree:
        """A tree within the budget and the target's context; EMPTY while no hidden row is known."""
        # the deepest nodes are not computed
        depth = min(budget.depth, self._runner.context - len(self._text) + 1)
        if depth < 1 or budget.nodes < 1:
            return EMPTY
        self._catch_up()
        if self._feature is None or self._place + 1 >= len(self._text):
            return EMPTY
        committed = self._table.length
        try:
            return self._grow(replace(budget, depth=depth))
        finally:
            self._table.truncate(committed)

    def close(self) -> None:
        """Give every block back."""
        self._table.release()

    def _catch_up(self) -> None:
        """Compute the places whose hidden rows came since."""
        for start, rows in self._rows:
            tokens = self._text[start + 1 : start + 1 + len(rows)]
            for at in range(0, len(tokens), CHUNK):
                piece = tokens[at : at + CHUNK]
                self._trunk = np.concatenate((self._trunk, self._runner.room(self._table, len(piece))))
                places = range(start + at, start + at + len(piece))
                view = RowLists.line(self._runner.store, self._trunk, len(piece))
                self._feature = self._runner.rows(piece, rows[at : at + len(piece)], places, view)[-1]
                self._place = places[-1]
        self._rows = []

    def _grow(self, budget: Budget) -> DraftTree:
        assert self._feature is not None
        feature, forced = self._feature, self._text[self._place + 2 :]
        trunk, place = self._trunk, self._place
        for token in forced:
            trunk = np.concatenate((trunk, self._runner.room(self._table, 1)))
            place += 1
            view = RowLists.line(self._runner.store, trunk, 1)
            feature = self._runner.rows([token], feature[None], [place], view)[0]
        branches = _Branches(self._runner, self._table, trunk, place, feature)
        if self._random is not None and budget.sampling.temperature > 0.0:

            def wide(nodes: Sequence[Node]) -> Tensor:
                return self._runner.widened(branches.logits(nodes, [node.token for node in nodes]), self._vocab_size)

            root = self._runner.widened(branches.root(), self._vocab_size)[0]
            return drawn(root, wide, budget, self._random, width=self._width, floor=self._floor)

        def narrow(nodes: Sequence[Node]) -> Tensor:
            return branches.logits(nodes, [self._runner.ids[node.token] for node in nodes])

        tree = likely(branches.root()[0], narrow, budget, width=self._width, floor=self._floor)
        return replace(tree, tokens=tuple(self._runner.ids[token] for token in tree.tokens))


class _Branches:
    """Drafted places behind a trunk: the feature and the scratch slots of every path."""

    def __init__(self, runner: MtpRunner, table: BlockTable, trunk: Slots, place: int, feature: Tensor) -> None:
        self._runner, self._table, self._trunk, self._place = runner, table, trunk, place
        self._features: dict[tuple[int, ...], Tensor] = {(): feature}
        self._slots: dict[tuple[int, ...], tuple[int, ...]] = {(): ()}

    def root(self) -> Tensor:
        """Logits [1, Vd] behind the text."""
        return self._runner.logits(self._features[()][None])

    def logits(self, nodes: Sequence[Node], tokens: Sequence[int]) -> Tensor:
        """Logits [n, Vd] behind nodes of one level, whose target tokens are `tokens`."""
        parents = [node.path[:-1] for node in nodes]
        for node, parent, slot in zip(nodes, parents, self._runner.room(self._table, len(nodes)).tolist(), strict=True):
            self._slots[node.path] = (*self._slots[parent], slot)
        view = RowLists.nodes(self._runner.store, self._trunk, [self._slots[node.path] for node in nodes])
        places = [self._place + len(node.path) for node in nodes]
        rows = self._runner.rows(tokens, torch.stack([self._features[parent] for parent in parents]), places, view)
        self._features |= {node.path: row for node, row in zip(nodes, rows, strict=True)}
        return self._runner.logits(rows)
