"""Sampling: a request's parameters as the server's, where the server means the same by them.

In: SamplingParams, what the server said about itself.   Out: `sampling_params` of `/generate`, every parameter named.
What the server does differently, or only sometimes, is refused by name: an option is never sent to mean something else.
Knows nothing about: HTTP, grammars, texts.
Source: SGLang 0.5.23 `sampling/sampling_params.py` (limits), `sampling/penaltylib` (what a penalty sees), `layers/sampler.py`
(order of the filters), `managers/schedule_batch.py` (what ends a text); speculation: see its verifiers - all read.
"""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.contracts import Json, Request, SamplingParams
from toolkit.engine.remote.probe import Facts
from toolkit.engine.remote.rows import NEUTRAL
from toolkit.errors import UnsupportedError

MOST_STOPS = 32
MOST_PENALTY = 2.0
JOINT = ("pytorch", "ascend")  # sampling backends whose top-k, top-p and min-p see one distribution


def refuse(request: Request, facts: Facts) -> None:
    """UnsupportedError for the first thing about a request for text that this server cannot do as asked."""
    for what, why, hint in _refusals(request, facts):
        raise UnsupportedError(f"{what} is not supported by the server {facts.url}: {why}", hint=hint)


def server_params(params: SamplingParams, max_tokens: int, seed: int | None) -> dict[str, Json]:
    """`sampling_params` of one sample."""
    return {
        **NEUTRAL,
        "temperature": params.temperature,
        "top_k": params.top_k or -1,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "logit_bias": {str(token): bias for token, bias in params.logit_bias.items()} or None,
        "stop": list(params.stop),
        "stop_token_ids": list(params.stop_ids),
        "ignore_eos": params.ignore_eos,
        "min_new_tokens": params.min_tokens,
        "max_new_tokens": max_tokens,
        **({} if seed is None else {"sampling_seed": seed}),
    }


def sample_seed(seed: int | None, index: int) -> int | None:
    """The seed of sample `index`: the server would give equal seeds equal samples."""
    return None if seed is None else (seed * 0x9E3779B97F4A7C15 + index * 0xD1B54A32D192ED03 + 1) % 2**31


def _refusals(request: Request, facts: Facts) -> Iterator[tuple[str, str, str]]:
    params = request.sampling
    if params.repetition_penalty != 1.0:
        yield "repetition_penalty", "it would see the output only, here it sees the prompt as well", "use presence_penalty"
    for name in ("presence_penalty", "frequency_penalty"):
        if abs(getattr(params, name)) > MOST_PENALTY:
            yield f"{name} = {getattr(params, name)}", f"it takes -{MOST_PENALTY} to {MOST_PENALTY}", ""
    if len(params.stop) > MOST_STOPS:
        yield f"stop with {len(params.stop)} strings", f"it takes {MOST_STOPS}", ""
    if params.ignore_eos and params.stop_ids:
        yield "ignore_eos together with stop_ids", "it would ignore those ids as well", "leave one of them out"
    if request.grammar is not None and (params.ignore_eos or params.min_tokens):
        yield "ignore_eos or min_tokens together with a grammar", "nothing may follow where a grammar ends", ""
    if params.temperature > 0 and params.seed is not None and not facts.deterministic:
        yield "seed", "its samples cannot be repeated", "start it with --enable-deterministic-inference, or leave the seed out"
    filters = (params.top_k > 0, params.top_p < 1.0, params.min_p > 0)
    if params.temperature > 0 and all(filters) and facts.sampling_backend not in JOINT:
        yield "top_k, top_p and min_p together", "each would see what the one before left", "leave one of them out"
    if facts.queue and params.n > facts.queue:
        yield (
            f"n = {params.n}",
            f"its queue takes {facts.queue} (--max-queued-requests)",
            f"n up to {facts.queue}, more requests",
        )
    if facts.watermark:
        yield "text", "it writes a watermark into all of it", "start it without --watermark-default-enabled"
    if request.trace:
        yield "trace", "it does not tell what a pass verified", ""
    if facts.speculative:
        yield from _speculative(request, facts, filters)


def _speculative(request: Request, facts: Facts, filters: tuple[bool, ...]) -> Iterator[tuple[str, str, str]]:
    params = request.sampling
    how = f"speculation ({facts.speculative})"
    if not request.speculate:
        yield "speculate = False", f"{how} cannot be left out of one request", "ask a server without it"
    if params.presence_penalty or params.frequency_penalty:
        yield "a penalty", f"under {how} it sees the last of several tokens only", "ask a server without speculation"
    if params.min_tokens:
        yield (
            "min_tokens",
            f"{how} counts passes as tokens, so that the end is kept away too long",
            "ask a server without speculation",
        )
    if params.temperature == 0:
        return
    if not facts.draws:
        yield (
            "temperature > 0",
            f"under {how} it takes the likeliest token (two texts were one when it was opened)",
            "temperature 0",
        )
    if facts.lossy:
        yield "temperature > 0", f"{how} with acceptance thresholds below 1 changes the distribution", "thresholds of 1"
    if params.min_p > 0:
        yield "min_p", f"{how} neither applies nor refuses it", "use top_p"
    if filters[0] and filters[1]:
        yield "top_k and top_p together", f"{how} applies them in another order", "leave one of them out"
