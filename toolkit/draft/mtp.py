"""MtpDrafter: a head that looks at the target's hidden rows guesses on, token after token, as a tree.

    place p   takes the hidden row of token p and the embedding of token p+1, and guesses token p+2

Committed places are computed once, from the target's own rows, and stay in the head's cache. Drafted places feed on the head's
own output; they lie in scratch slots behind and are cut off again. A token that a grammar forced, whose row the target has
not computed yet, is a drafted place too.
In: committed tokens and hidden rows.   Out: a tree of the likeliest continuations, or drawn ones with their q.
Knows nothing about: how trees are verified, other sequences.
Invariants: between two proposals the line ends with the places whose rows are known. Places without a row (found in
the prefix cache) are absent: the head then sees less, which costs acceptance and nothing else.
Source: 2401.15077 (EAGLE), 2412.19437 section 2.2; trees by joint probability 2406.16858.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, log
from typing import Any

import torch
from torch import Tensor

from toolkit.draft.card import find_head, is_published
from toolkit.draft.contract import NEVER, Budget, Chances, Commit, Cost, Target
from toolkit.draft.grow import Node, drawn, likely, weighed
from toolkit.draft.mtp_file import load_mtp
from toolkit.draft.mtp_runner import MtpRunner
from toolkit.draft.options import Options
from toolkit.draft.published import read_published_mtp
from toolkit.draft.slots import RowLists, SlotLine
from toolkit.draft.tree import EMPTY, MOST_NODES, DraftTree
from toolkit.model.native.guesser import GuessPlan
from toolkit.sample.draw import generator

CHUNK = 256  # places of a prompt in one pass
KV_TOKENS = 1 << 15  # room for all sequences together; memory is used only where something was written
MOST_KV_TOKENS = 1 << 22
MOST_PASSES = 8  # guesses one after the other, where their number is left to what they are worth


class MtpSource:
    """Options: head (a folder of `toolkit train mtp` or in a layout of published.py, "" = the one that comes with the package), width (most children of a
    node, 4; 1 = chain), floor (least joint probability, .05), draw (draw from the head at the request's temperature instead of
    taking its likeliest tokens, False), kv_tokens (room for all sequences together).
    """

    name = "mtp"
    needs_hidden = True
    lossy = False

    def __init__(self, target: Target, options: Mapping[str, Any]) -> None:
        given = Options(self.name, options)
        folder = given.text("head")
        self.width = given.count("width", 4, 1, MOST_NODES)
        self.floor = given.share("floor", 0.05)
        self.draw = given.flag("draw", False)
        self.chances: Chances = "none" if self.draw else "all"
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
        self._line = runner.line()  # of the committed places
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
        weigh = budget.worth is not None and self._random is None
        # the deepest nodes are not computed
        room = self._runner.context - len(self._text) + 1
        depth = min(room, MOST_PASSES, budget.reach) if weigh else min(room, budget.depth)
        if depth < 1 or (budget.least >= NEVER if weigh else not budget.nodes):
            return EMPTY
        if weigh:
            return self._weighed(budget, depth)
        self._catch_up()
        if self._feature is None or self._place + 1 >= len(self._text):
            return EMPTY
        committed = self._line.end
        try:
            return self._grow(replace(budget, depth=depth))
        finally:
            self._line.end = committed

    def close(self) -> None:
        """Give every block back."""
        self._line.release()

    def _weighed(self, budget: Budget, depth: int) -> DraftTree:
        """The likeliest tokens one after the other, and what is likely beside them; as many as are worth their rows."""
        least = log(budget.least) if budget.least > 0.0 else -inf
        plan = GuessPlan(depth, min(self._width, budget.reach), least, budget.sampling.temperature or 1.0)
        pieces = self._pieces()
        if pieces and pieces[-1][2] + len(pieces[-1][0]) == len(self._text) - 1:
            for piece in pieces[:-1]:
                self._compute(*piece)
            tokens, rows, place = pieces[-1]
            self._feature, levels = self._runner.guesses(self._line, tokens, rows, place, plan)
            self._place = place + len(tokens) - 1
        else:  # a grammar forced tokens, or nothing is new
            for piece in pieces:
                self._compute(*piece)
            if self._feature is None or self._place + 1 >= len(self._text):
                return EMPTY
            committed = self._line.end
            try:
                levels = self._runner.guesses_behind(self._line, *self._through(), plan)
            finally:
                self._line.end = committed
        tree = weighed(levels, budget, floor=self._floor)
        return replace(tree, tokens=tuple(self._runner.ids[token] for token in tree.tokens))

    def _catch_up(self) -> None:
        """Compute the places whose hidden rows came since."""
        for piece in self._pieces():
            self._compute(*piece)

    def _compute(self, tokens: Sequence[int], rows: Tensor, place: int) -> None:
        self._feature = self._runner.extend(self._line, tokens, rows, place)
        self._place = place + len(tokens) - 1

    def _pieces(self) -> list[tuple[list[int], Tensor, int]]:
        """(tokens, rows, first place) of what is not computed yet, at most CHUNK together; the caller computes all of it."""
        found: list[tuple[list[int], Tensor, int]] = []
        for start, run in _runs(self._rows):
            rows = run[0] if len(run) == 1 else torch.cat(run)
            for at in range(0, len(rows), CHUNK):
                piece, place = rows[at : at + CHUNK], start + at
                found.append((self._text[place + 1 : place + 1 + len(piece)], piece, place))
        self._rows = []
        return found

    def _through(self) -> tuple[Tensor, int]:
        """(feature, place) behind tokens that a grammar forced, which are drafted places too: the line holds them for now."""
        assert self._feature is not None
        place, feature = self._place, self._feature
        for token in self._text[self._place + 2 :]:
            place += 1
            feature = self._runner.extend(self._line, [token], feature[None], place)
        return feature, place

    def _grow(self, budget: Budget) -> DraftTree:
        feature, place = self._through()
        branches = _Branches(self._runner, self._line, place, feature)
        if self._random is not None and budget.sampling.temperature > 0.0:

            def wide(nodes: Sequence[Node]) -> Tensor:
                rows = branches.rows(nodes, [node.token for node in nodes])
                return self._runner.widened(self._runner.logits(rows), self._vocab_size)

            root = self._runner.widened(self._runner.logits(feature[None]), self._vocab_size)[0]
            return drawn(root, wide, budget, self._random, width=self._width, floor=self._floor)

        def narrow(nodes: Sequence[Node]) -> Tensor:
            return branches.rows(nodes, [self._runner.ids[node.token] for node in nodes])

        tree = likely(feature, narrow, budget, width=self._width, floor=self._floor, read=self._runner.likeliest)
        return replace(tree, tokens=tuple(self._runner.ids[token] for token in tree.tokens))


def _runs(rows: Sequence[tuple[int, Tensor]]) -> list[tuple[int, list[Tensor]]]:
    """(place of the first, rows) of stretches without a gap."""
    found: list[tuple[int, list[Tensor]]] = []
    end = -1
    for start, piece in rows:
        if start == end:
            found[-1][1].append(piece)
        else:
            found.append((start, [piece]))
        end = start + len(piece)
    return found


class _Branches:
    """Drafted places behind a trunk: the feature and the scratch slots of every path."""

    def __init__(self, runner: MtpRunner, line: SlotLine, place: int, feature: Tensor) -> None:
        self._runner, self._line, self._place = runner, line, place
        self._used = line.end  # slots behind the trunk
        self._features: dict[tuple[int, ...], Tensor] = {(): feature}
        self._slots: dict[tuple[int, ...], tuple[int, ...]] = {(): ()}

    def rows(self, nodes: Sequence[Node], tokens: Sequence[int]) -> Tensor:
        """Features [n, D] of nodes of one level, whose target tokens are `tokens`."""
        parents = [node.path[:-1] for node in nodes]
        start, self._used = self._used, self._used + len(nodes)
        self._line.reach(self._used - self._line.end)
        for node, parent, slot in zip(nodes, parents, self._line.slots[start : self._used].tolist(), strict=True):
            self._slots[node.path] = (*self._slots[parent], slot)
        view = RowLists.nodes(
            self._runner.store, self._line.slots[: self._line.end], [self._slots[node.path] for node in nodes]
        )
        places = [self._place + len(node.path) for node in nodes]
        rows = self._runner.rows(tokens, torch.stack([self._features[parent] for parent in parents]), places, view)
        self._features |= {node.path: row for node, row in zip(nodes, rows, strict=True)}
        return rows
