"""Audit: did the target mean this text? Its own logits, computed again without speculation, are asked about every token.

    greedy            the token is the argmax, or within `ties` nats of it (0 where sums are exact)
    drawn, seed       plain decoding with the same random numbers draws the same token, up to `ties`
    drawn, no seed    drafts were drawn: the same numbers need not give the same text. Evidence against "drawn from p" is gathered

The evidence is a product of likelihood ratios q(x)/p(x) over the text, q a fixed alternative: its expectation is 1 whatever the
length if x is drawn from p, so it exceeds 1/alarm with a probability of at most `alarm` (Ville's inequality). A normal
approximation of the summed log-probabilities promises no such thing: their tail is heavy where p has rare tokens.
In: logits or probabilities of one row at a time.   Out: the verdict as a record.
Knows nothing about: how texts are replayed, drafters.
Source: test martingales (Shafer et al. 0912.4269); alternatives: a share of uniformly wrong tokens, a flatter and a sharper p.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
from torch import Tensor

from toolkit.contracts import Audit, Completion, Request, SamplingParams
from toolkit.sample.filters import distribution, is_plain

ALARM = 1e-6  # probability that the likelihood test fails a good text
FLOAT_TIES = 1e-4  # nats by which rows of float32 differ with the shape of the pass that computed them
SERVER_TIES = 0.1  # the same for a server in bfloat16
_WRONG = (1 / 8, 1 / 64)  # share of tokens that are uniform noise
_POWERS = (0.5, 2.0)


def chosen(share: float, request_id: str, index: int, seed: int) -> bool:
    """Whether a sample is among the audited `share`: the same for the same request, sample and seed."""
    digest = hashlib.sha256(f"{request_id}\0{index}\0{seed}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


class Evidence:
    """Evidence against "every token was drawn from the distribution it is shown with"."""

    def __init__(self) -> None:
        self._logs = torch.zeros(len(_WRONG) + len(_POWERS), dtype=torch.float64)
        self.tokens = 0

    def see(self, probs: Tensor, place: int) -> None:
        """probs [K] float64, all above 0, sum 1; the token is at `place`."""
        logs = probs.log()
        x = logs[place]
        noise = probs.new_tensor([math.log(share / len(probs)) for share in _WRONG])
        wrong = torch.logaddexp(x + noise.new_tensor([math.log1p(-share) for share in _WRONG]), noise)
        powers = [power * x - torch.logsumexp(power * logs, 0) for power in _POWERS]
        self._logs += torch.cat((wrong, torch.stack(powers))) - x
        self.tokens += 1

    @property
    def log(self) -> float:
        """Of the mean over the alternatives."""
        return float(torch.logsumexp(self._logs, 0)) - math.log(len(self._logs))

    @property
    def is_damning(self) -> bool:
        return self.log > -math.log(ALARM)


def same_draw(logits: Tensor, params: SamplingParams, at: float, token: int, ties: float) -> bool:
    """Whether the uniform number `at` could draw `token` from logits [V] that are known up to `ties` nats each."""
    probs, ids = distribution(logits, params)
    match = (ids == token).nonzero()
    if not len(match):
        return False
    own = probs[match[0, 0]]
    slack = 2 * ties / params.temperature
    below, through = probs[probs > own * math.exp(slack)].sum(), probs[probs >= own * math.exp(-slack)].sum()
    return float(below) - slack <= at <= float(through) + slack


def read_logprobs(request: Request, completion: Completion, *, ties: float = SERVER_TIES) -> Audit:
    """Audit of a greedy text by its log-probabilities, for an engine that computes them over the finished text (SGLangEngine).

    What they cannot show is "not checkable": drawn texts, and texts whose argmax a grammar, a bias or a penalty decides.
    """
    params = request.sampling
    reasons: dict[str, Any] = {
        "the text is drawn": params.temperature > 0,
        "a grammar decides what is likeliest": request.grammar is not None,
        "a bias or a penalty decides what is likeliest": not is_plain(params),
        "end tokens are banned at its beginning": params.min_tokens > 0,
        "its log-probabilities were not asked for (logprobs >= 1)": len(completion.logprobs) != len(completion.token_ids),
    }
    count = len(completion.token_ids)
    for why in (why for why, holds in reasons.items() if holds):
        return Audit(verdict="not checkable", method="none", tokens=count, why=why)
    for place, each in enumerate(completion.logprobs):
        if not each.top:
            return Audit(verdict="not checkable", method="none", tokens=count, why="the likeliest tokens were not told")
        gap = each.top[0][1] - each.logprob
        if not gap <= ties:  # nan is a failure as well
            why = f"token {place} ({each.token_id}) is {gap:.3g} nats less likely than {each.top[0][0]}"
            return Audit(verdict="fail", method="argmax", tokens=count, ties=ties, why=why)
    return Audit(verdict="pass", method="argmax", tokens=count, ties=ties)
