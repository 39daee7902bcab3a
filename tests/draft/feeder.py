"""Feeder: commits as an engine makes them, of a text that repeats itself, with hidden rows where a source asks for them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from toolkit.draft.contract import Commit, Source, Target
from toolkit.draft.tree import ROOT, DraftTree


class Feeder:
    """The text so far and the commits that made it. Hidden rows are noise that depends on the place and its token alone."""

    def __init__(self, source: Source, target: Target, seed: int) -> None:
        self.noise = random.Random(seed)
        self.text: list[int] = []
        self._wanted, self._width = source.needs_hidden, target.decoder.config.hidden_size
        self._vocabulary = target.vocab_size

    def first(self, prompt: int = 40, *, cached: int = 0) -> Commit:
        """Prompt and first token; hidden rows of the prompt behind `cached` tokens."""
        self.text = [*self.tokens(prompt), self.tokens(1)[0]]
        return Commit(tuple(self.text), self._rows(cached, prompt), cached if self._wanted else 0)

    def commit(self, tokens: Sequence[int]) -> Commit:
        """Further tokens; rows of the token that was last and of all new ones but the last."""
        start = len(self.text) - 1
        self.text += tokens
        return Commit(tuple(tokens), self._rows(start, len(self.text) - 1), start if self._wanted else 0)

    def tokens(self, count: int) -> list[int]:
        """Mostly a copy of earlier text, now and then any token."""
        found: list[int] = []
        while len(found) < count:
            line = self.text + found
            if len(line) > 8 and self.noise.random() < 0.7:
                start = self.noise.randrange(len(line) - 4)
                found += line[start : start + 4]
            else:
                found.append(self.noise.randrange(self._vocabulary))
        return found[:count]

    def verdict(self, tree: DraftTree) -> list[int]:
        """What a target may make of a tree: some path of it, then one token of its own, at times forced ones behind."""
        found: list[int] = []
        place = ROOT
        while place in tree.children and self.noise.random() < 0.7:
            place = self.noise.choice(tree.children[place])
            found.append(tree.tokens[place])
        return found + self.tokens(self.noise.choice([1, 1, 1, 3]))

    def _rows(self, start: int, stop: int) -> Tensor | None:
        if not self._wanted:
            return None
        rows = [
            torch.randn(self._width, generator=torch.Generator().manual_seed(997 * at + self.text[at]))
            for at in range(start, stop)
        ]
        return torch.stack(rows) if rows else torch.empty(0, self._width)
