"""Targets: what the base said at a place, over the draft vocabulary, as weights for the loss.

In: a Batch, places and how far behind them the base is asked.   Out: draft ids and weights.
Knows nothing about: heads, losses.
Invariants: weights are the base's own probabilities, with a share moved to its likeliest token; what is not in the draft vocabulary
has weight 0 and its mass is lost, not given to others (renormalised targets would teach wrong tokens at those places).
"""

from __future__ import annotations

import torch
from torch import Tensor

from toolkit.train.batches import Batch


class Targets:
    """ids [Vd]: the draft vocabulary; vocab_size: of the base; sharp: the share that moves to the likeliest token."""

    def __init__(self, ids: Tensor, vocab_size: int, sharp: float) -> None:
        self._draft = torch.full((vocab_size,), -1)
        self._draft[ids] = torch.arange(len(ids))
        self._sharp = sharp

    def __call__(self, batch: Batch, ahead: int, places: Tensor) -> tuple[Tensor, Tensor]:
        """Draft ids and weights [A, K] of what the base said `ahead` places behind the flat `places` [A]; id 0 where weight is 0."""
        said = self._draft[batch.top_ids.flatten(0, 1)[places + ahead]]
        weights = batch.probs.flatten(0, 1)[places + ahead] * (1 - self._sharp)
        weights[:, 0] += self._sharp
        return said.clamp(min=0), weights.masked_fill_(said < 0, 0.0)
