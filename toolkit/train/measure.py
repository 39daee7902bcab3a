"""Measure: how much of what a head would guess the base would accept, on held-out replies, place by place.

In: for every depth whether the guess at a place is the base's own choice.   Out: acceptance by depth.
Knows nothing about: heads, files.
Definitions: a draft that begins at place p is accepted to depth s when its guesses at p, p+1 .. p+s-1 are all the base's likeliest
tokens. `conditional[s]` is the share of drafts accepted to s among those accepted to s-1; `chain[s]` that of all drafts;
tokens a pass of a chain of k = 1 + chain[1] + .. + chain[k]. Places are those of replies; a greedy reply's drafts begin at a subset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class Acceptance:
    """Counts over all drafts that could have gone to the last depth."""

    depths: int
    drafts: int = 0
    right: list[int] = field(default_factory=list)  # accepted to depth 1, 2 ..

    def __post_init__(self) -> None:
        self.right = [0] * self.depths

    def add(self, guesses: Sequence[tuple[Tensor, Tensor]], size: int) -> None:
        """guesses[s]: (places [A], right [A] bool) of depth s+1; a guess at place p continues one at p-1. size: of the flat batch."""
        live, right = (torch.zeros(self.depths, size, dtype=torch.bool) for _ in range(2))
        for s, (places, good) in enumerate(guesses):
            live[s, places - s], right[s, places - s] = True, good
        whole = live.all(0)
        self.drafts += int(whole.sum())
        for s in range(self.depths):
            self.right[s] += int((right[: s + 1].all(0) & whole).sum())

    @property
    def chain(self) -> list[float]:
        return [count / max(1, self.drafts) for count in self.right]

    @property
    def conditional(self) -> list[float]:
        before = [self.drafts, *self.right]
        return [count / max(1, known) for count, known in zip(self.right, before, strict=False)]

    def tokens_per_pass(self, depth: int) -> float:
        """Expected tokens of a pass that verifies a chain of `depth`."""
        return 1 + sum(self.chain[:depth])
