"""Reply: checks on what a server sends back; anything that does not answer what was asked is an EngineError.

In: parsed JSON of `/generate`.   Out: the same values with their types proved.
Knows nothing about: HTTP, what the values are for.
Invariants: no value of a reply is used before it passed here; errors quote it cut.
Source: SGLang 0.5.23 `managers/tokenizer_manager.py`: a log-probability entry is [logprob or null, token id, text or null].
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from toolkit.contracts import Json
from toolkit.engine.remote.connection import BUSY, FailedRequestError, one_line
from toolkit.errors import EngineError

SLACK = 1e-3  # how far above 0 a log-probability may be by rounding


def bad(what: str, value: object) -> FailedRequestError:
    """The error for a reply that holds something else than it should: sent again, the request would fare no better."""
    return FailedRequestError(f"the server's reply is not what SGLang sends: {what} is {_shown(value)}", repeat=False)


def _shown(value: object) -> str:
    try:
        return repr(value)[:120]
    except (ValueError, RecursionError):  # an integer of very many digits, lists in lists
        return f"a {type(value).__name__} that is too large to show"


def batch(reply: Json, count: int) -> list[Mapping[str, Json]]:
    """The replies to a request of `count` lines, each with its meta_info. Errors: those of `checked`."""
    if not isinstance(reply, list) or len(reply) != count:
        raise bad(f"the list of {count} replies", type(reply).__name__ if not isinstance(reply, list) else len(reply))
    return [checked(each) for each in reply]


def checked(reply: Json) -> Mapping[str, Json]:
    """One reply: an object with `meta_info`. FailedRequestError where the server gave the line up."""
    refuse_aborted(reply)
    meta = reply.get("meta_info") if isinstance(reply, dict) else None
    if not isinstance(meta, dict):
        raise bad("meta_info", meta)
    assert isinstance(reply, dict)
    return reply


def refuse_aborted(reply: Json) -> None:
    """FailedRequestError where the server gave a line of a reply up, as it does when its queue is full: then it may be sent again."""
    for line in reply if isinstance(reply, list) else [reply]:
        meta = line.get("meta_info") if isinstance(line, dict) else None
        reason = meta.get("finish_reason") if isinstance(meta, dict) else None
        if isinstance(reason, dict) and reason.get("type") == "abort":
            busy = reason.get("status_code") in BUSY
            said = one_line(str(reason.get("message")))
            raise FailedRequestError(f"the server gave the request up: {said}", repeat=busy, busy=busy)


def count_of(meta: Mapping[str, Json], name: str, most: int) -> int:
    """A count of 0 to `most`."""
    value = meta.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise bad(name, value)
    return value


def costs(reply: Mapping[str, Json], sent: int) -> int:
    """Prompt tokens that the server found in its cache; it must have read exactly the `sent` ones."""
    meta = reply["meta_info"]
    if meta.get("prompt_tokens") != sent:
        raise bad(f"prompt_tokens of a prompt of {sent}", meta.get("prompt_tokens"))
    return count_of(meta, "cached_tokens", sent)


def output_ids(reply: Mapping[str, Json], vocab_size: int) -> list[int]:
    """Ids that were generated, all of them in the vocabulary."""
    given = reply.get("output_ids")
    if not isinstance(given, list) or not all(type(token) is int and 0 <= token < vocab_size for token in given):
        raise bad(f"output_ids below {vocab_size}", given)
    return given


def number(value: Json) -> float:
    """A log-probability; null and numbers below any real one stand for 0 probability."""
    if value is None:
        return -math.inf
    if not isinstance(value, int | float) or isinstance(value, bool) or not value <= SLACK:
        raise bad("a log-probability", value)
    return min(float(value), 0.0) if value > -1e4 else -math.inf


def entries(meta: Mapping[str, Json], name: str, wanted: Sequence[int] | None, at: int = 0) -> dict[int, float]:
    """token id -> log-probability out of entry `at` of `meta[name]`; exactly `wanted` where ids are given."""
    return pairs(row(meta, name, at), name, wanted)


def likeliest(found: Json, name: str, most: int, vocab_size: int) -> dict[int, float]:
    """token id -> log-probability of the `most` likeliest tokens, all of them in the vocabulary."""
    given = pairs(found, name, None)
    beyond = next((token for token in given if token >= vocab_size), None)
    if beyond is not None:
        raise EngineError(
            f"the server's vocabulary is larger than the tokenizer's {vocab_size}: it reports token {beyond}",
            hint="give the tokenizer of the model that is served",
        )
    if len(given) != most:
        raise bad(f"{name} for the {most} likeliest tokens", f"{len(given)} tokens")
    return given


def row(meta: Mapping[str, Json], name: str, at: int) -> Json:
    """Entry `at` of the list `meta[name]`."""
    found = meta.get(name)
    if not isinstance(found, list) or len(found) <= at:
        raise bad(name, found)
    return found[at]


def pairs(found: Json, name: str, wanted: Sequence[int] | None) -> dict[int, float]:
    """token id -> log-probability of one list of entries."""
    if not isinstance(found, list):
        raise bad(f"an entry of {name}", found)
    given = dict(pair(each, name) for each in found)
    if wanted is not None and given.keys() != set(wanted):
        raise bad(f"{name} for {len(set(wanted))} ids", f"{len(given)} ids")
    return given


def pair(value: Json, name: str) -> tuple[int, float]:
    """(token id, log-probability) of one entry."""
    if not isinstance(value, list) or len(value) < 2 or not isinstance(value[1], int) or isinstance(value[1], bool):
        raise bad(f"an entry of {name}", value)
    if value[1] < 0:
        raise bad(f"a token id in {name}", value[1])
    return value[1], number(value[0])


def scores(meta: Mapping[str, Json], ids: Sequence[int]) -> tuple[float, ...]:
    """Log-probabilities of `ids[1:]`, of which `input_token_logprobs` must tell: ids[0] is where the entries begin."""
    name = "input_token_logprobs"
    found = meta.get(name)
    if not isinstance(found, list) or len(found) != len(ids):
        raise bad(f"{name} for {len(ids)} tokens", found if not isinstance(found, list) else len(found))
    given = [pair(each, name) for each in found]
    if [token for token, _ in given] != list(ids):
        raise bad(f"{name} of the tokens sent", [token for token, _ in given][:8])
    return tuple(logprob for _, logprob in given[1:])
