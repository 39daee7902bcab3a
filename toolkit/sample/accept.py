"""Accept: which token follows, and whether one of the drafted ones is it - without changing the distribution.

At a node of a draft tree the target has logits, the drafter proposed children. Three cases:

    temperature 0        the argmax, accepted if a child is it
    nothing was drawn    the draw of plain decoding, accepted if a child is it: the same uniform number gives the same token
    children were drawn  recursive rejection: child i is accepted with probability min(1, p(x_i) / q_i(x_i)), else
                         p <- norm(max(0, p - q_i)); when all are refused the token is drawn from what is left of p

p is the distribution of plain decoding (`filters.distribution`). Every child may be drawn given those before it: a refusal
leaves a residual that does not depend on what was refused, so the rule is exact for siblings drawn without replacement.
In: logits [V] of one row, adjusted and masked (-inf = forbidden).   Out: a token, and the place of the child that stands for it.
Knows nothing about: trees, drafters, grammars, sequences.
Source: chains 2211.17192 section 2.3; several children 2305.09781 section 4.3 (multi-step), drawn without replacement as in
2402.14160; the one-hot case of the same rule accepts x with p(x), which is "draw, then compare".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from toolkit.contracts import SamplingParams
from toolkit.errors import EngineError
from toolkit.sample.draw import draw
from toolkit.sample.filters import distribution, is_cut, tempered

SLACK = 1e-4  # how far a row of q may sum from 1: float32 sums of a large vocabulary stray by less


def choose(
    logits: Tensor, params: SamplingParams, random: torch.Generator, children: Sequence[int], q: Tensor | None = None
) -> tuple[int, int | None]:
    """(token, place in `children` of the accepted one, None = a correction or a bonus).

    children: the tokens of the siblings in the order they were drawn.
    q [n, V]: what each was drawn from, given its earlier siblings; None = nothing was drawn.
    Raises EngineError for a q that cannot be that; no random number is used up then.
    """
    if params.temperature == 0.0 or q is None or not children:
        token = draw(logits, params, random)
        return token, children.index(token) if token in children else None
    rows = checked(q, children, len(logits))
    p = dense(logits, params)
    for place, (token, row) in enumerate(zip(children, rows, strict=True)):
        if _uniform(random) * float(row[token]) < float(p[token]):
            return token, place
        p = residual(p, row)
    return invert(p, random), None


def dense(logits: Tensor, params: SamplingParams) -> Tensor:
    """The distribution of plain decoding over all tokens: [V] float64 on the CPU, sums to 1. temperature must be above 0."""
    if not is_cut(params):
        probs = tempered(logits, params.temperature).cpu()
        return probs / probs.sum()
    probs, ids = distribution(logits, params)
    return torch.zeros(len(logits), dtype=torch.float64).index_copy_(0, ids.cpu(), probs.cpu())


def residual(p: Tensor, q: Tensor) -> Tensor:
    """norm(max(0, p - q)), all [V] float64; p itself where nothing is left, which only rounding can bring about."""
    rest = (p - q).clamp_(min=0.0)
    mass = rest.sum()
    return rest / mass if mass > 0 else p


def checked(q: Tensor, children: Sequence[int], vocabulary: int) -> Tensor:
    """q as float64 rows [n, V] that sum to 1. EngineError where a child cannot have been drawn from its row."""
    if q.shape != (len(children), vocabulary):
        raise EngineError(f"q {list(q.shape)} must be {[len(children), vocabulary]}: one row for each drafted token")
    q = q.detach().to("cpu", torch.float64)
    for place, token in enumerate(children):
        row = q[place]
        total = float(row.sum())
        if not abs(total - 1.0) <= SLACK or float(row.min()) < 0.0:  # "not <=" refuses nan
            raise EngineError(
                f"row {place} of q is no distribution: it sums to {total} and its least entry is {float(row.min())}"
            )
        if not 0 <= token < len(row) or float(row[token]) <= 0.0:
            raise EngineError(f"drafted token {token} has no probability in its row of q: it cannot have been drawn from it")
        if any(float(row[earlier]) != 0.0 for earlier in children[:place]):
            raise EngineError(
                f"row {place} of q gives an earlier sibling a probability: siblings are drawn without replacement"
            )
    return q / q.sum(-1, keepdim=True)


def invert(p: Tensor, random: torch.Generator) -> int:
    """A token drawn from p [V] float64: where the cumulative sum first exceeds a uniform share of it, so p > 0 there."""
    sums = p.cumsum(0)
    return int(torch.searchsorted(sums, _uniform(random) * sums[-1], right=True))


def _uniform(random: torch.Generator) -> float:
    return float(torch.rand((), generator=random, dtype=torch.float64))
