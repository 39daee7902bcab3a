"""Asking: the tables of a canary to requests for one engine - biases over its tokens, fillers to its context.

In: an `ask` table, the engine, the conversation so far.   Out: a Request.
Knows nothing about: answers.
Invariants: for engines with one tokenizer the request is the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.contracts import Engine, Grammar, Message, Request, SamplingParams, Tokenizer
from toolkit.validate.tools.grammar import tools_grammar

LIFT = 30.0  # nats by which "letters" are lifted above all other tokens
_ROOM = 256  # tokens of the context that a filler leaves


def request_of(ask: Mapping[str, Any], engine: Engine, before: Sequence[Message]) -> Request:
    """`before`: the messages of earlier turns, for an ask that follows them."""
    chat = [*before] if ask.get("follows") else [{"role": "system", "content": ask["system"]}] if "system" in ask else []
    return Request(
        prompt=[*chat, {"role": "user", "content": _filler(ask, engine) + ask["user"]}],
        sampling=_sampling(ask.get("sampling", {}), engine.tokenizer),
        grammar=_grammar(ask),
        trace=engine.capabilities.engine == "embedded",
    )


def is_certain(params: SamplingParams) -> bool:
    """Whether one token is left at every place, whatever the random numbers."""
    return params.temperature == 0.0 or params.top_k == 1 or params.min_p == 1.0 or params.top_p <= 1e-6


def _sampling(told: Mapping[str, Any], tokenizer: Tokenizer) -> SamplingParams:
    options = dict(told)
    bias: dict[int, float] = {}
    for letter in options.pop("letters", ""):
        bias |= dict.fromkeys(tokenizer.encode(letter), LIFT)
    for text in options.pop("banned", ()):
        bias |= dict.fromkeys(tokenizer.encode(text)[:1], -100.0)
    if end := options.pop("end_bias", 0.0):
        bias |= dict.fromkeys(tokenizer.eos_ids, end)
    if "stop" in options:
        options["stop"] = tuple(options["stop"])
    return SamplingParams(**options, logit_bias=bias)


def _grammar(ask: Mapping[str, Any]) -> Grammar | None:
    if "schema" in ask:
        return Grammar("json_schema", ask["schema"])
    if "regex" in ask:
        return Grammar("regex", ask["regex"])
    if "tools" in ask:
        return tools_grammar(ask["format"], json.loads(ask["tools"]), parallel=ask.get("parallel", 1))
    return None


def _filler(ask: Mapping[str, Any], engine: Engine) -> str:
    """Numbered lines up to so many tokens, the needle among them at two thirds."""
    if "filler" not in ask:
        return ""
    lines: list[str] = []
    room = min(ask["tokens"], engine.capabilities.context - _ROOM)
    while room > 0:
        i = len(lines)
        lines.append(ask["filler"].format(i=i, a=(i * 37) % 101, b=(i * 13) % 89, c=(i * 7) % 23))
        room -= len(engine.tokenizer.encode(lines[-1] + "\n"))
    if "needle" in ask:
        lines[len(lines) * 2 // 3] = ask["needle"]
    return "\n".join(lines) + "\n\n"
