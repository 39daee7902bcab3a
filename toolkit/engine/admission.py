"""Admission: a request is checked and measured before it may wait for blocks.

Out: prompt ids, compiled grammar, the tokens it may generate, the most KV blocks it can ever hold.
Raises UsageError (ids outside the vocabulary, empty prompt), ContextError (prompt too long for the context, request too
large for the pool), SchemaError (grammar).
Knows nothing about: the model, other requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from toolkit.contracts import CompiledGrammar, Message, Prompt, Request, Tokenizer, require
from toolkit.errors import ContextError, UnsupportedError
from toolkit.grammar.compile import compile_grammar


class Limits(NamedTuple):
    """What the engine has: context in tokens, the pool's blocks and their size in tokens."""

    context: int
    kv_blocks: int
    block_size: int


class Admitted(NamedTuple):
    """A request ready to wait."""

    prompt: list[int]
    grammar: CompiledGrammar | None
    max_tokens: int
    reserve: int


def prompt_ids(prompt: Prompt, tokenizer: Tokenizer) -> list[int]:
    """Ids of raw text, of a chat (through the model's template), or the given ids, checked against the vocabulary."""
    if isinstance(prompt, str):
        return checked_ids(tokenizer.encode(prompt), tokenizer)
    if any(isinstance(item, bool) or not isinstance(item, int | Mapping) for item in prompt):
        require(False, "prompt", list(prompt)[:3], "text, token ids or messages")
    items: list[int] = []
    chat: list[Message] = []
    for item in prompt:
        if isinstance(item, int):
            items.append(item)
        else:
            chat.append(item)
    require(not (items and chat), "prompt", prompt[:3], "text, token ids or messages, not a mixture")
    return checked_ids(tokenizer.chat(chat) if chat else items, tokenizer)


def checked_ids(ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    bad = next((i for i in ids if not 0 <= i < tokenizer.vocab_size), None)
    require(bad is None, "token id", bad, f"0 to {tokenizer.vocab_size - 1}, the model's vocabulary")
    require(len(ids) > 0, "prompt", "", "at least one token")
    return list(ids)


def admit(request: Request, tokenizer: Tokenizer, limits: Limits, *, spare: int = 0, apart: bool = False) -> Admitted:
    """Check a generation or beam request; see the module for what is raised. Each line may hold `spare` tokens beside its text.

    apart: lines may each come to hold the prompt's last block on their own.
    """
    sampling = request.sampling
    if request.beam is None:
        for name, ids in (
            ("logit_bias", tuple(sampling.logit_bias)),
            ("stop_ids", sampling.stop_ids),
            ("logprob_ids", sampling.logprob_ids),
        ):
            bad = next((i for i in ids if not 0 <= i < tokenizer.vocab_size), None)
            require(bad is None, f"{name} id", bad, f"0 to {tokenizer.vocab_size - 1}, the model's vocabulary")
        top = sampling.logprobs or 0
        require(top <= tokenizer.vocab_size, "logprobs", top, f"at most the vocabulary, {tokenizer.vocab_size}")
    elif sampling != type(sampling)():
        raise UnsupportedError(
            f"request {request.id!r} has both beam and sampling parameters: a beam search draws nothing",
            hint="set max_tokens and the rest in BeamParams, or leave beam out",
        )
    if request.beam is not None and request.watch is not None:
        raise UnsupportedError(
            f"request {request.id!r} has both beam and watch: a beam search is not read while it is decoded",
            hint="give it a grammar: its hypotheses are validated by that",
        )
    prompt = prompt_ids(request.prompt, tokenizer)
    room = limits.context - len(prompt)
    if room < 1:
        raise ContextError(
            f"the prompt of request {request.id!r} has {len(prompt)} tokens but the context holds {limits.context}",
            hint="shorten or split the text; one token at least must be left to generate",
        )
    max_tokens = min(request.beam.max_tokens if request.beam else sampling.max_tokens, room)
    lines = request.beam.width if request.beam else sampling.n
    size = limits.block_size
    reserve = reserve_blocks(len(prompt), [max_tokens + spare + (size if apart else 0)] * lines, limits)
    grammar = compile_grammar(request.grammar, tokenizer) if request.grammar is not None else None
    return Admitted(prompt, grammar, max_tokens, reserve)


def reserve_blocks(prompt: int, tails: Sequence[int], limits: Limits) -> int:
    """Most blocks of lines that share a prompt: its full blocks once, the rest of every line, one more while copying on write.

    ContextError if that cannot fit.
    """
    size = limits.block_size
    full = prompt // size
    reserve = full + sum(-(-(prompt + tail) // size) - full for tail in tails) + (len(tails) > 1)
    if reserve > limits.kv_blocks:
        raise ContextError(
            f"a request of {prompt} prompt tokens and {len(tails)} lines of up to {max(tails, default=0)} tokens can need "
            f"{reserve} KV blocks of {size} tokens, the engine has kv_blocks = {limits.kv_blocks}",
            hint="raise kv_blocks, or ask for fewer or shorter lines (width, n, max_tokens, continuations)",
        )
    return reserve
