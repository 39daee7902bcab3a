"""Parting: where two greedy texts of one request part, and whether that is a tie.

In: the request, what the baseline wrote, what the candidate wrote.   Out: the place, both tokens, nats between them.
The nats are the baseline's own, computed again over the common beginning, penalties and biases of the request included: what the
candidate reports of itself is no evidence. Where an engine cannot score, its reported rivals are asked, else it is unknown (inf).
Knows nothing about: verdicts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from toolkit.contracts import Completion, Engine, Request
from toolkit.engine.admission import prompt_ids
from toolkit.engine.audit import CODED_TIES, HALF_TIES, ties_of
from toolkit.errors import ToolkitError

SERVER_TIES = 1e-3  # float32 in a server


class Parting(NamedTuple):
    """From token `at` on the texts differ; None = the text had ended. `nats`: how much likelier the baseline's token is."""

    at: int
    expected: int | None
    found: int | None
    nats: float

    def __str__(self) -> str:
        return f"token {self.at}: {self.found} for {self.expected}, {self.nats:.3g} nats apart"


def parting(baseline: Engine, request: Request, expected: Completion, found: Completion) -> Parting | None:
    """None where the tokens are the same."""
    mine, other = expected.token_ids, found.token_ids
    if mine == other:
        return None
    at = next((i for i, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), min(len(mine), len(other)))
    ends = [ids[at] if at < len(ids) else None for ids in (mine, other)]
    return Parting(at, ends[0], ends[1], _nats(baseline, request, expected, at, ends[0], ends[1]))


def _nats(
    baseline: Engine, request: Request, expected: Completion, at: int, mine: int | None, other: int | None
) -> float:  # fmt: skip
    if mine is None or other is None:
        return math.inf  # one text goes on where the other has ended: no two tokens to compare
    try:
        ids = prompt_ids(request.prompt, baseline.tokenizer)
        (one,), (two,) = baseline.score([*ids, *expected.token_ids[:at]], [[mine], [other]])
        gap = one - two
    except ToolkitError:
        gap = _reported(expected, at, other)
    return abs(gap + _shift(request, expected.token_ids[:at], mine) - _shift(request, expected.token_ids[:at], other))


def _reported(expected: Completion, at: int, other: int) -> float:
    """From the baseline's own report of its likeliest tokens."""
    if at >= len(expected.logprobs):
        return math.inf
    there = expected.logprobs[at]
    return there.logprob - dict(there.top).get(other, -math.inf)


def _shift(request: Request, before: Sequence[int], token: int) -> float:
    """What bias and additive penalties do to a token's logit. A repetition penalty multiplies: it is left out."""
    params, count = request.sampling, Counter(before)[token]
    return params.logit_bias.get(token, 0.0) - params.frequency_penalty * count - params.presence_penalty * (count > 0)


def tolerance(baseline: Engine, candidate: Engine) -> float:
    """Nats between two tokens that the numbers of this pair may order either way.

    What quantised keys do to a text is no tie where they are what is under test: both sides must have them.
    """
    pair = (baseline, candidate)
    coded = all(getattr(each, "kv_dtype", "").startswith("q") for each in pair)
    return max(*map(_ties, pair), CODED_TIES if coded else 0.0)


def _ties(engine: Engine) -> float:
    form = getattr(engine, "format", None)
    if form is not None:
        return ties_of(form)
    return SERVER_TIES if getattr(getattr(engine, "facts", None), "dtype", "") == "float32" else HALF_TIES
