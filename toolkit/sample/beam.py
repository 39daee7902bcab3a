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

PART = 64  # logits: a row's maximum over them, and its sum, are taken in two steps
_NEVER = 1e30  # nats: added instead of -inf, on which exp is slow
_FAR = 40.0  # nats between the likeliest token and the likeliest allowed one


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
    before top-k, and the first log-probability is not renormalised. Rows with fewer allowed tokens give shorter lists. A row's
    numbers depend neither on the other rows nor on the number of threads.
    """
    parts = _parts(logits, -_NEVER)
    most = parts.amax((1, 2))
    shares = (parts - most[:, None, None]).exp_()
    norm = legal = most + _sums(shares).log_()
    if allowed is not None:
        may = _parts(allowed.to(logits.dtype), 0.0)
        legal = most + _sums(shares.mul_(may)).log_()
        parts = may.sub_(1.0).mul_(_NEVER).add_(parts)  # in place: fresh memory of this size costs more than the sums
        first = parts.amax((1, 2))
        far = most - first > _FAR  # there the shares of what is allowed lose their last bits, or vanish
        if bool(far.any()):
            legal = torch.where(far, first + _sums((parts - first[:, None, None]).exp_()).log_(), legal)
    values, ids = _largest(parts, min(count, logits.shape[-1]))
    rows = zip(ids.tolist(), values.tolist(), norm.tolist(), legal.tolist(), strict=True)
    return [
        [
            (token, min(value - n, 0.0), min(value - m, 0.0))
            for token, value in zip(tokens, logit, strict=True)
            if value > -_NEVER / 2
        ]
        for tokens, logit, n, m in rows
    ]


def _parts(rows: Tensor, fill: float) -> Tensor:
    """Rows [R, V] in parts [R, V / PART rounded up, PART]."""
    missing = -rows.shape[-1] % PART
    padded = torch.nn.functional.pad(rows, (0, missing), value=fill) if missing else rows
    return padded.reshape(len(rows), -1, PART)


def _sums(parts: Tensor) -> Tensor:
    """[R], part by part: torch splits a single long row between threads, which changes its last bits."""
    return parts.sum(-1).sum(-1)


def _largest(parts: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values and places [R, count] of the largest in every row: they are in the `count` parts with the largest maxima."""
    likely = parts.amax(-1).topk(min(count, parts.shape[1]), dim=-1).indices.sort(-1).values  # [R, C]; ties go to lower ids
    inside = parts.gather(1, likely[..., None].expand(-1, -1, PART)).flatten(1)
    values, places = inside.topk(count, dim=-1)
    return values, likely.gather(1, places // PART) * PART + places % PART


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
