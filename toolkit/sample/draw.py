"""Draw: one token from one row of logits, by argmax or by a generator of the sequence's own.

Sampling inverts the cumulative distribution at one uniform number, so a sequence's tokens depend on its seed and its own
logits alone - not on who else is in the batch. Ties of argmax go to the lowest id.
Knows nothing about: sequences, models.
"""

from __future__ import annotations

import torch
from torch import Tensor

from toolkit.contracts import SamplingParams
from toolkit.sample.filters import LIKELIEST, distribution, is_cut, tempered


def generator(seed: int, index: int = 0) -> torch.Generator:
    """Random numbers of sample `index` of a request with `seed`: distinct streams for distinct (seed, index)."""
    return torch.Generator().manual_seed((seed * 0x9E3779B97F4A7C15 + index * 0xD1B54A32D192ED03 + 1) % 2**63)


def draw(logits: Tensor, params: SamplingParams, random: torch.Generator) -> int:
    """A token id from logits [V]; greedy (temperature 0) uses no random number.

    A number that falls among the likeliest tokens is looked up there, without putting all in order: the same token.
    """
    if params.temperature == 0.0:
        return likeliest(logits)
    at = torch.rand((), generator=random, dtype=torch.float64)
    if not is_cut(params) and len(logits) > LIKELIEST:
        probs = tempered(logits, params.temperature)
        first, ids = probs.topk(LIKELIEST)
        sums = first.cumsum(0).cpu()
        wanted = at * probs.sum().cpu()
        if wanted < sums[-1]:
            return int(ids[int(torch.searchsorted(sums, wanted, right=True))])
    probs, ids = distribution(logits, params)
    place = int(torch.searchsorted(probs.cumsum(0).cpu(), at, right=True))
    return int(ids[min(place, len(ids) - 1)])


def likeliest(logits: Tensor) -> int:
    """The id of the largest of logits [V]; on the CPU by numpy, which takes a twentieth of torch's time for one row."""
    return int(logits.numpy().argmax() if logits.device.type == "cpu" and logits.dtype == torch.float32 else logits.argmax())
