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
from typing import Literal

import torch
from torch import Tensor

from toolkit.contracts import Audit, Completion, Request, SamplingParams
from toolkit.engine.listed import Listed
from toolkit.sample.filters import distribution, is_plain

ALARM = 1e-6  # probability that the likelihood test fails a good text
INT8_TIES = 0.0  # integer sums have one result
FLOAT_TIES = 1e-4  # nats by which rows of float32 differ with the shape of the pass that computed them
HALF_TIES = 0.1  # bfloat16 and float16
CODED_TIES = 0.5  # keys of few bits: a last bit that crosses a border between two codes moves all layers above (.32 was seen)
SERVER_TIES = 0.1  # the same for a server in bfloat16
_WRONG = (1 / 8, 1 / 64)  # share of tokens that are uniform noise
_POWERS = (0.5, 2.0)


def ties_of(form: str, kv_dtype: str = "auto") -> float:
    """Nats between two tokens that an engine's numbers may order either way, by its `format` and `kv_dtype`."""
    if kv_dtype.startswith("q"):
        return CODED_TIES
    return INT8_TIES if form.startswith(("int8", "int4")) else FLOAT_TIES if form == "float32" else HALF_TIES


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


def read_logprobs(request: Request, completion: Completion, *, vocab_size: int, ties: float = SERVER_TIES) -> Audit:
    """Audit of a text by its log-probabilities, for an engine that computes them over the finished text (SGLangEngine).

    Greedy text must be the likeliest token at every place, up to `ties` nats. Drawn text gets a likelihood test (listed.py), and none
    of its tokens may be one that its filters leave out. What log-probabilities cannot show is "not checkable": texts whose
    distribution a grammar, a bias or a penalty has changed, or that were not asked for with logprobs >= 1.
    """
    params, count = request.sampling, len(completion.token_ids)
    reasons = {
        "a grammar decides what is likely": request.grammar is not None,
        "a bias or a penalty decides what is likely": not is_plain(params),
        "end tokens are banned at its beginning": params.min_tokens > 0,
        "its log-probabilities were not told (logprobs >= 1)": len(completion.logprobs) != count
        or not all(each.top for each in completion.logprobs),
    }
    for why in (why for why, holds in reasons.items() if holds):
        return Audit(verdict="not checkable", method="none", tokens=count, why=why)
    return _greedy(completion, ties) if params.temperature == 0 else _drawn(params, completion, vocab_size, ties)


def _greedy(completion: Completion, ties: float) -> Audit:
    count = len(completion.token_ids)
    for place, each in enumerate(completion.logprobs):
        likeliest, most = max(each.top, key=lambda pair: pair[1])
        if not most - each.logprob <= ties:  # nan is a failure as well
            why = f"token {place} ({each.token_id}) is {most - each.logprob:.3g} nats less likely than {likeliest}"
            return Audit(verdict="fail", method="argmax", tokens=count, ties=ties, why=why)
    return Audit(verdict="pass", method="argmax", tokens=count, ties=ties)


def _drawn(params: SamplingParams, completion: Completion, vocab_size: int, ties: float) -> Audit:
    evidence, count, why = Listed(vocab_size, ties), len(completion.token_ids), ""
    for place, each in enumerate(completion.logprobs):
        others = sorted((logprob for token, logprob in each.top if token != each.token_id), reverse=True)
        if math.isnan(each.logprob) or not evidence.see(each.logprob, others, params):
            why = f"token {place} ({each.token_id}) cannot be drawn: its log-probability is {each.logprob:.3g}"
            break
    if not why and evidence.log > -math.log(ALARM):
        why = f"so unlikely a text is drawn less than once in {1 / ALARM:,.0f} times"
    verdict: Literal["pass", "fail"] = "fail" if why else "pass"
    return Audit(verdict=verdict, method="likelihood", tokens=count, ties=ties, log_evidence=evidence.log, alarm=ALARM, why=why)
