"""Listed: was a text drawn from the model, judged by the log-probabilities of the likeliest tokens alone, as a server tells them.

    bound(own, top, ...)   the most that sampling can give a token, None where it cannot draw it at all
    Listed                 evidence against "drawn from p", in terms of those bounds

A product of likelihood ratios q(x)/p(x) has expectation 1 if x is drawn from p (see audit.py). With a bound b >= p in the place of p each
ratio is smaller, so the promise about false alarms holds: the evidence exceeds 1/alarm with a probability of at most `alarm`, as long
as log-probabilities are right up to `ties` nats. Alternatives q: a share of uniformly wrong tokens; half of the tokens the likeliest
one, which is what sampling that does not sample gives.
In: log-probabilities at temperature 1, of the token and of the likeliest ones, the sampling parameters.   Out: a bound; evidence.
Knows nothing about: servers, requests.
Invariants: a bound is never below the probability, whichever way filters are combined (one after another, or all on one distribution).
Source: Ville's inequality, as audit.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from toolkit.contracts import SamplingParams

_WRONG = (1 / 8, 1 / 64)  # share of tokens that are uniform noise
_GREEDY = 1 / 2  # share of tokens that are the likeliest


def bound(own: float, top: Sequence[float], params: SamplingParams, vocab_size: int, ties: float) -> float | None:
    """The most that sampling gives a token of log-probability `own`; `top` are the likeliest ones', best first, without it.

    Raises nothing for numbers <= 0; temperature > 0.
    """
    cold, best = 1 / params.temperature, max([own, *top])
    if own == -math.inf:
        return None
    weight, weights = math.exp(cold * (own - best)), [math.exp(cold * (each - best)) for each in top]
    above = sum(each > own + ties for each in top)
    if params.top_k and above >= params.top_k:
        return None
    least = math.log(params.min_p) if params.min_p > 0 else -math.inf
    if cold * (own - best) < least - cold * ties:
        return None
    total = weight + sum(weights)
    most = total + _unlisted(own, top, vocab_size, cold, best)
    slack, mass = math.exp(-2 * cold * ties), sum(weights[:above]) / most
    if params.top_p < 1 and max(mass * slack, 1 - (1 - mass) / slack) > params.top_p:
        return None
    return min(1.0, weight / (weight + _surely(own, top, weights, params, ties)))


def _unlisted(own: float, top: Sequence[float], vocab_size: int, cold: float, best: float) -> float:
    """The most that all tokens weigh which are not listed: each is no likelier than the least of `top`."""
    count, least = vocab_size - len(top) - 1, min(top, default=0.0)
    mass = max(0.0, 1 - math.fsum(map(math.exp, [own, *top])))
    each = math.exp(cold * (least - best))
    if cold < 1 or least == -math.inf:
        return max(count, 0) * each
    return min(max(count, 0) * each, mass * math.exp((cold - 1) * least - cold * best))


def _surely(own: float, top: Sequence[float], weights: Sequence[float], params: SamplingParams, ties: float) -> float:
    """The weight of other listed tokens that no filter takes away, however it is applied."""
    cold, best = 1 / params.temperature, max([own, *top])
    slack, least = math.exp(2 * cold * ties), math.log(params.min_p) if params.min_p > 0 else -math.inf
    weight = math.exp(cold * (own - best))
    pool = sorted([weight, *weights], reverse=True)[: params.top_k or None]
    sure = 0.0
    for each, its in zip(top, weights, strict=True):
        before = [w for other, w in zip([own, *top], [weight, *weights], strict=True) if other >= each - ties]
        fits = not params.top_k or len(before) <= params.top_k
        if fits and cold * (each - best) >= least + cold * ties and (sum(before) - its) / sum(pool) * slack < params.top_p:
            sure += its
    return sure


class Listed:
    """Evidence over one text; `log` is its natural logarithm."""

    def __init__(self, vocab_size: int, ties: float) -> None:
        self._vocab_size, self._ties = vocab_size, ties
        self._logs = [0.0] * (len(_WRONG) + 1)
        self.tokens = 0

    def see(self, own: float, top: Sequence[float], params: SamplingParams) -> bool:
        """The next token; False where sampling cannot have drawn it."""
        most = bound(own, top, params, self._vocab_size, self._ties)
        if most is None:
            return False
        slack = math.exp(-2 * self._ties / params.temperature)
        likeliest = own > max(top, default=-math.inf)
        ratios = [1 - share + share * slack / (self._vocab_size * most) for share in _WRONG]
        ratios.append(1 - _GREEDY + _GREEDY * likeliest * slack / most)
        self._logs = [log + math.log(ratio) for log, ratio in zip(self._logs, ratios, strict=True)]
        self.tokens += 1
        return True

    @property
    def log(self) -> float:
        """Of the mean over the alternatives."""
        most = max(self._logs)
        return most + math.log(math.fsum(math.exp(each - most) for each in self._logs) / len(self._logs))
