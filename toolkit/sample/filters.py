"""Filters: what a request's parameters do to one row of logits, in the one order every path uses.

    bias, penalties  ->  ban (min_tokens)  ->  grammar mask  ->  temperature  ->  top-k, top-p, min-p

The last three act jointly on the distribution after temperature: a token stays if it is among the k likeliest AND the mass
of the tokens before it is below p AND its probability is at least min_p of the likeliest's; none sees what another cut.
In: logits [V] float32 of one row.   Out: logits [V] (`adjust`), probabilities with ids (`distribution`).
Knows nothing about: sequences, models. Functions are pure: inputs are never changed.
Source: repetition penalty 1909.05858 section 4.1; nucleus 1904.09751; min-p 2407.01082.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor

from toolkit.contracts import SamplingParams

LIKELIEST = 512  # tokens that are put in order first; a draw, or a cut, is seldom behind them


def is_plain(params: SamplingParams) -> bool:
    """True if nothing changes the logits themselves."""
    return (
        not params.logit_bias
        and params.repetition_penalty == 1.0
        and params.presence_penalty == 0.0
        and params.frequency_penalty == 0.0
    )


def adjust(logits: Tensor, params: SamplingParams, prompt: Iterable[int], generated: Iterable[int]) -> Tensor:
    """Logits [V] after bias and penalties. Repetition sees prompt and output, presence and frequency the output only."""
    if is_plain(params):
        return logits
    logits = logits.clone()
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    counts = Counter(generated)
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(prompt) | counts.keys()), dtype=torch.long, device=logits.device)
        hit = logits[seen]
        logits[seen] = torch.where(hit > 0, hit / params.repetition_penalty, hit * params.repetition_penalty)
    if counts and (params.presence_penalty or params.frequency_penalty):
        ids = torch.tensor(list(counts), dtype=torch.long, device=logits.device)
        times = torch.tensor(list(counts.values()), dtype=logits.dtype, device=logits.device)
        logits[ids] -= params.presence_penalty + params.frequency_penalty * times
    return logits


def ban(logits: Tensor, ids: Iterable[int]) -> Tensor:
    """Logits [V] with `ids` at -inf."""
    logits = logits.clone()
    logits[list(ids)] = -torch.inf
    return logits


def distribution(logits: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Probabilities [K] in falling order and their ids [K], K <= V, after temperature, top-k, top-p and min-p; sums to 1.

    temperature must be above 0: greedy has no distribution, it is the argmax.
    """
    probs = tempered(logits, params.temperature)
    if 0 < params.top_k < len(probs):
        return _cut(*probs.topk(params.top_k), params)[:2]
    if is_cut(params) and len(probs) > LIKELIEST:  # to order a large vocabulary takes as long as a pass of a small model
        probs_, ids, ends = _cut(*probs.topk(LIKELIEST), params)
        if ends:
            return probs_, ids
    return _cut(*probs.sort(descending=True), params)[:2]


def tempered(logits: Tensor, temperature: float) -> Tensor:
    """Probabilities [V] float64 at a temperature, nothing cut."""
    wide = logits.double()
    return torch.softmax((wide - wide.max()) / temperature, dim=-1)  # less the maximum first: tiny temperatures overflow


def is_cut(params: SamplingParams) -> bool:
    """Whether top-k, top-p or min-p leave anything out."""
    return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0


def _cut(probs: Tensor, ids: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor, bool]:
    """What top-p and min-p keep of probabilities in falling order, and whether they end before the last: then they keep nothing behind it either."""
    keep = probs > 0
    if params.top_p < 1.0:
        keep &= probs.cumsum(0) - probs < params.top_p
    if params.min_p > 0.0:
        keep &= probs >= params.min_p * probs[0]
    keep[0] = True
    ends = not bool(keep[-1])
    probs, ids = probs[keep], ids[keep]
    return probs / probs.sum(), ids, ends
