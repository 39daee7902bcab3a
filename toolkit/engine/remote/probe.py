"""Probe: who a server is - its model, its limits, the options that change what its numbers mean.

In: a connection and the tokenizer that requests will be written with.   Out: `Facts`; `Identity`, which must stay the same.
Every server of a fleet, and a server that comes back after it died, is asked the same: the ids of a probe text and their
log-probabilities. Another tokenizer or another model is an error by name.
Scores are probed, too: a token's log-probability as an input and as a next token must agree, else something in the server
changes logits before they are reported. And a CPU server that speculates is asked to draw, twice: SGLang's own verification takes the
likeliest token there whatever the temperature, that of `toolkit serve` does not, and neither says so.
Knows nothing about: requests of callers, repeats.
Source: `/server_info` and `/model_info` of SGLang 0.5.23, `/get_server_info` and `/get_model_info` of older ones and of routers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.contracts import Json, Tokenizer
from toolkit.engine.remote.connection import Connection, FailedRequestError
from toolkit.engine.remote.fleet import GENERATE
from toolkit.engine.remote.reply import bad, checked, entries, pair
from toolkit.engine.remote.rows import NEUTRAL, RAW, WARM
from toolkit.errors import EngineError, UnsupportedError

TEXT = 'In 2024, Zoë\'s café sold 137 teas:\n\t{"total": 41.10}'  # digits, accents, white space, JSON: where tokenizers part
SAME = 0.25  # nats: mean difference up to which two servers run the same model; number formats and batches differ by less
UNKNOWN = "unknown"  # what servers behind a router run with: treated as if they speculated
KEPT = 7  # tokens of its context that a server of SGLang 0.5.23 takes no prompt for (tried: 193 of 200)
HOT: Mapping[str, Json] = {**NEUTRAL, "temperature": 10.0, "max_new_tokens": 8, "ignore_eos": True}  # nobody draws a text twice
RAW_WITHIN = 0.05  # nats between a token's log-probability as an input and as a next token


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a server says about itself; "" where it does not say. `context` is the longest prompt, output so far included, that it
    takes; 0 = a router does not tell."""

    url: str
    version: str
    model: str
    served: str
    tokenizer: str
    weights: str
    context: int
    queue: int  # lines that may wait in it, those of one request among them (max_queued_requests); 0 = any number
    grammar_backend: str
    sampling_backend: str
    speculative: str
    deterministic: bool
    device: str
    dtype: str
    watermark: bool
    lossy: bool  # speculation with acceptance thresholds below 1
    draws: bool  # a temperature has an effect: False where speculation always takes the likeliest token
    cache: bool
    on_policy: bool
    router: bool


@dataclass(frozen=True, slots=True)
class Identity:
    """Ids of the probe text and their log-probabilities [T-1]; `drift` is how far the last one is from its score as a next token."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    drift: float

    def check(self, other: Identity, url: str) -> None:
        """EngineError unless `other`, from the server at `url`, is the same model."""
        pairs = list(zip(self.logprobs, other.logprobs, strict=False))
        gap = math.fsum(abs(a - b) for a, b in pairs if a != b) / max(len(pairs), 1)  # two infinite ones are equal
        if self.ids != other.ids or gap > SAME:
            raise EngineError(
                f"{url} runs another model than the one this engine was opened on: the log-probabilities of a probe text are "
                f"{gap:.2f} nats apart on average",
                hint="open an engine of its own for it",
            )


def read_facts(connection: Connection) -> Facts:
    """Ask a server about itself. FailedRequestError where it does not answer, UnsupportedError for one without generation."""
    model = _info(connection, "/model_info", "/get_model_info")
    server = server_info(connection)
    if model.get("is_generation") is False:
        raise UnsupportedError(f"{connection.url} serves {_text(model, 'model_path')}, which does not generate text")
    thresholds = [server.get(f"speculative_accept_threshold_{name}") for name in ("single", "acc")]
    return Facts(
        url=connection.url,
        version=_text(server, "version"),
        model=_text(model, "model_path"),
        served=_text(model, "served_model_name") or _text(server, "served_model_name"),
        tokenizer=_text(model, "tokenizer_path") or _text(server, "tokenizer_path"),
        weights=_text(model, "weight_version"),
        context=_context(server),
        queue=_queue(server),
        grammar_backend=_text(server, "grammar_backend"),
        sampling_backend=_text(server, "sampling_backend"),
        speculative=UNKNOWN if is_router(server) else _text(server, "speculative_algorithm"),
        deterministic=server.get("enable_deterministic_inference") is True,
        device=_text(server, "device"),
        dtype=_text(server, "dtype"),
        watermark=server.get("watermark_default_enabled") is True or server.get("watermark_enforce_all") is True,
        lossy=any(isinstance(value, int | float) and value < 1.0 for value in thresholds),
        draws=not (server.get("speculative_algorithm") and server.get("device") == "cpu") or _draws(connection),
        cache=server.get("disable_radix_cache") is not True,
        on_policy=server.get("rl_on_policy_target") is not None,
        router=is_router(server),
    )


def server_info(connection: Connection) -> Mapping[str, Json]:
    """Everything that a server says about itself."""
    return _info(connection, "/server_info", "/get_server_info")


def _draws(connection: Connection) -> bool:
    """Whether two texts at a high temperature are two."""
    asked = {"text": TEXT, "sampling_params": HOT}
    one, two = (checked(connection.post(GENERATE, asked)).get("output_ids") for _ in range(2))
    return one != two


def identify(connection: Connection, tokenizer: Tokenizer) -> Identity:
    """Ids and scores of the probe text; EngineError where the tokenizer is not the server's."""
    asked = {"text": TEXT, "sampling_params": WARM, "return_logprob": True, "logprob_start_len": 0}
    meta = checked(connection.post(GENERATE, asked))["meta_info"]
    found = meta.get("input_token_logprobs")
    if not isinstance(found, list) or len(found) < 2:
        raise bad("input_token_logprobs of the probe text", found)
    given = [pair(each, "input_token_logprobs") for each in found]
    ids = [token for token, _ in given]
    ours = tokenizer.encode(TEXT)
    if ids[len(ids) - len(ours) :] != ours or len(ids) > len(ours) + 1:  # one token more: a beginning that the server adds
        place = next((i for i, (a, b) in enumerate(zip(ids, ours, strict=False)) if a != b), min(len(ids), len(ours)))
        raise EngineError(
            f"the tokenizer is not that of {connection.url}: they part at token {place} of a probe text "
            f"({ids[place : place + 3]} there, {ours[place : place + 3]} here)",
            hint="give the folder of the model that is served: tokenizer=, --tokenizer",
        )
    return Identity(tuple(ids), tuple(logprob for _, logprob in given[1:]), _drift(connection, given, tokenizer))


def _drift(connection: Connection, given: list[tuple[int, float]], tokenizer: Tokenizer) -> float:
    """How far the last token's score as a next token is from its score as an input; the highest id is asked for as well."""
    *before, (last, expected) = given
    named = sorted({last, tokenizer.vocab_size - 1})
    asked = {
        "input_ids": [token for token, _ in before],
        "sampling_params": RAW,
        "return_logprob": True,
        "token_ids_logprob": named,
    }
    try:
        meta = checked(connection.post(GENERATE, asked))["meta_info"]
    except UnsupportedError as error:
        if "vocabulary" not in error.message:
            raise
        raise EngineError(
            f"the vocabulary of {connection.url} is smaller than the tokenizer's {tokenizer.vocab_size} tokens: {error.message}",
            hint="give the tokenizer of the model that is served",
        ) from error
    return abs(entries(meta, "output_token_ids_logprobs", named)[last] - expected)


def caveats(facts: Facts, identity: Identity) -> tuple[str, ...]:
    """What a reader of scores from this server must know."""
    found = []
    if not identity.drift <= RAW_WITHIN:
        found.append(
            f"scores are not the model's own: {facts.url} reports log-probabilities that something in it has changed "
            f"(one token differs by {identity.drift:.2f} nats from its score as an input)"
        )
    if facts.on_policy:
        found.append(f"scores are rounded: {facts.url} runs with rl_on_policy_target")
    if facts.router:
        found.append(
            f"every line of a step is a request of its own: {facts.url} is a router, which takes no lists of parameters"
        )
    if not facts.cache:
        found.append(f"every step computes whole prompts again: {facts.url} runs with disable_radix_cache")
    return tuple(found)


def _info(connection: Connection, path: str, older: str) -> Mapping[str, Json]:
    try:
        found = connection.get(path)
    except FailedRequestError as error:
        if "(404)" not in error.message:
            raise
        found = connection.get(older)
    if not isinstance(found, dict):
        raise bad(path, found)
    return found


def _text(found: Mapping[str, Json], name: str) -> str:
    value = found.get(name)
    if value is not None and not isinstance(value, str):
        raise bad(name, value)
    return value or ""


def _context(server: Mapping[str, Json]) -> int:
    for name, kept in (("max_req_input_len", 1), ("context_length", KEPT)):  # it takes what is shorter than the first
        value = server.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > kept:
            return value - kept
    if not is_router(server):
        raise bad("max_req_input_len in /server_info", server.get("max_req_input_len"))
    return 0


def _queue(server: Mapping[str, Json]) -> int:
    value = server.get("max_queued_requests")
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise bad("max_queued_requests in /server_info", value)
    return max(value, 1)  # at 0 a line is taken only when nothing waits: one at a time


def is_router(server: Mapping[str, Json]) -> bool:
    """Whether that is SGLang's router speaking for itself. Its servers' own addresses are not followed: the API key stays here."""
    return "router_manager" in server
