"""Beam arithmetic: how hypotheses are scored, bounded, chosen and compared. No model, no state.

A hypothesis' sum is the sum of the model's own log-probabilities (unmasked, temperature 1) of its tokens, the end token
counted. All live hypotheses of a step have the same length, so they are compared by sum; finished ones by score.
Knows nothing about: sequences, grammars.
Source: length penalties as in SGLang's server and transformers (sum / length**alpha), GNMT 1609.08144 eq. 14;
diverse groups 1610.02424; the stopping bound is ours: log-probabilities are never positive, so a live hypothesis can at
best keep its sum and grow to the length that divides it most.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from toolkit.contracts import BeamParams


class Candidate(NamedTuple):
    """One way to extend live hypothesis `parent` by `token`; `key` is what the choice goes by (sum less diversity cost)."""

    key: float
    parent: int
    token: int
    logprob: float  # the model's own
    allowed_logprob: float  # renormalised over what the grammar allowed
    ends: bool


def score(total: float, length: int, params: BeamParams) -> float:
    """Normalised score of a finished hypothesis of `length` tokens, the end token counted."""
    if params.alpha == 0.0:
        return total
    divisor = (5.0 + length) / 6.0 if params.penalty == "gnmt" else float(max(length, 1))
    return float(total / divisor**params.alpha)


def bound(total: float, params: BeamParams) -> float:
    """Upper bound of the score that a live hypothesis of sum `total` <= 0 can still reach: no loss to the longest length."""
    return score(total, params.max_tokens, params)


def best(logits: Tensor, allowed: Tensor | None, count: int) -> list[list[tuple[int, float, float]]]:
    """The `count` likeliest allowed tokens of every row: (token, log-probability, log-probability among the allowed).

    logits [R, V] float32; allowed [R, V] bool or None. Masks decide what is allowed, never what is likely: the mask acts
    before top-k, and the first log-probability is not renormalised. Rows with fewer allowed tokens give shorter lists.
    """
    norm = torch.logsumexp(logits, dim=-1)
    legal = norm
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -torch.inf)
        legal = torch.logsumexp(logits, dim=-1)
    values, ids = logits.topk(min(count, logits.shape[-1]), dim=-1)
    rows = zip(ids.tolist(), values.tolist(), norm.tolist(), legal.tolist(), strict=True)
    return [
        [
            (token, min(value - n, 0.0), min(value - m, 0.0))
            for token, value in zip(tokens, logit, strict=True)
            if value > -torch.inf
        ]
        for tokens, logit, n, m in rows
    ]


def choose(candidates: Sequence[Candidate], width: int) -> tuple[list[Candidate], list[Candidate]]:
    """(survivors, ended): walk the candidates best first; an end counts only while fewer than `width` survivors precede it.

    Ties go to the earlier parent, then to the lower token id, so that a run can be repeated.
    """
    survivors: list[Candidate] = []
    ended: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: (-c.key, c.parent, c.token)):
        if len(survivors) == width:
            break
        (ended if candidate.ends else survivors).append(candidate)
    return survivors, ended


def diversity(sequences: Sequence[Sequence[int]]) -> float:
    """Mean share of differing tokens over all pairs, 0 (alike, or fewer than two) to 1: one less the matching ratio."""
    pairs = list(combinations(sequences, 2))
    if not pairs:
        return 0.0
    return sum(1.0 - SequenceMatcher(None, list(a), list(b), autojunk=False).ratio() for a, b in pairs) / len(pairs)
