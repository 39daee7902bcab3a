"""Sources for tests of the speculative loop: they guess from a given text, from noise, or misbehave on purpose."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

from toolkit.draft.contract import Budget, Commit, Cost, Drafter
from toolkit.draft.tree import EMPTY, DraftTree

VOCABULARY = 261


class Scripted:
    """A source whose drafters call `guess(text so far, budget, random)`; keeps every drafter it opened."""

    name = "scripted"
    lossy = False
    chances = "none"
    draw = False
    cost = Cost()

    def __init__(self, guess: Callable[[list[int], Budget, random.Random], DraftTree], *, needs_hidden: bool = False) -> None:
        self.guess = guess
        self.needs_hidden = needs_hidden
        self.opened: list[ScriptedDrafter] = []

    def open(self, seed: int) -> Drafter:
        self.opened.append(ScriptedDrafter(self, seed))
        return self.opened[-1]


class ScriptedDrafter:
    def __init__(self, source: Scripted, seed: int) -> None:
        self.source = source
        self.text: list[int] = []
        self.hidden: list[tuple[int, torch.Tensor]] = []
        self.random = random.Random(seed)
        self.closed = 0

    def observe(self, commit: Commit) -> None:
        self.text += commit.tokens
        if commit.hidden is not None:
            self.hidden.append((commit.start, commit.hidden.clone()))

    def propose(self, budget: Budget) -> DraftTree:
        return self.source.guess(self.text, budget, self.random)

    def close(self) -> None:
        self.closed += 1


def knowing(line: list[int], *, wrong: float = 0.3, prompt: int = 0) -> Callable[[list[int], Budget, random.Random], DraftTree]:
    """Trees that hold the true continuation `line` (prompt and output) among noise; with probability `wrong` a step is lost."""

    def guess(text: list[int], budget: Budget, noise: random.Random) -> DraftTree:
        tokens: list[int] = []
        parent: list[int] = []
        place = -1
        ahead = line[len(text) :]
        for depth in range(min(budget.depth, 5)):
            truth = ahead[depth] if depth < len(ahead) and noise.random() >= wrong else noise.randrange(VOCABULARY)
            family = list(dict.fromkeys([noise.randrange(VOCABULARY), truth, noise.randrange(VOCABULARY)]))
            family = family[: max(0, min(noise.randint(1, 3), budget.nodes - len(tokens)))]
            if not family:
                break
            first = len(tokens)
            tokens += family
            parent += [place] * len(family)
            place = first + (family.index(truth) if truth in family else 0)
        return DraftTree(tuple(tokens), tuple(parent)) if tokens else EMPTY

    return guess
