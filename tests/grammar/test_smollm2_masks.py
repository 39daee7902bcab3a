"""Masks over a real vocabulary of 49,152 tokens."""

from __future__ import annotations

import json

import pytest

from tests.grammar.small_vocabulary import allowed_ids
from toolkit.contracts import Grammar, Tokenizer
from toolkit.grammar.compile import compile_grammar
from toolkit.grammar.mask import allocate
from toolkit.model.store import resolve
from toolkit.text.tokenizer import load_tokenizer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve("smollm2"))


def test_control_tokens_are_never_legal_inside_a_string(tokenizer: Tokenizer) -> None:
    matcher = compile_grammar(Grammar("json_schema", '{"type":"string"}'), tokenizer).matcher()
    matcher.advance(tokenizer.encode('"a'))
    mask = allocate(1, tokenizer.vocab_size)
    matcher.fill(mask, 0)
    allowed = set(allowed_ids(mask, 0))
    assert len(allowed) > 30_000
    assert not allowed & (tokenizer.control_ids | set(tokenizer.eos_ids))


def test_every_token_is_allowed_exactly_where_its_text_may_follow(tokenizer: Tokenizer) -> None:
    words = ["alpha", "alphabet", "al", "beta carotene", "12", "éa", "日本"]
    matcher = compile_grammar(Grammar("choices", json.dumps(words)), tokenizer).matcher()
    mask = allocate(1, tokenizer.vocab_size)
    for prefix in ("", "al", "alpha", "beta"):
        fork = matcher.fork()
        fork.advance(tokenizer.encode(prefix))
        fork.fill(mask, 0)
        expected = {
            id_
            for id_ in range(tokenizer.vocab_size)
            if tokenizer.token_bytes(id_)
            and any(w.encode().startswith(prefix.encode() + tokenizer.token_bytes(id_)) for w in words)
        }
        expected |= set(tokenizer.eos_ids) if prefix in words else set()
        allowed = set(allowed_ids(mask, 0))
        assert allowed == (set(fork.forced()[:1]) or expected), prefix
        assert allowed <= expected


def test_forced_text_comes_in_the_models_own_tokens(tokenizer: Tokenizer) -> None:
    schema = {
        "type": "object",
        "properties": {"location": {"enum": ["Paris"]}},
        "required": ["location"],
        "additionalProperties": False,
    }
    matcher = compile_grammar(Grammar("json_schema", json.dumps(schema)), tokenizer).matcher()
    tokens: list[int] = []
    while not matcher.is_stopped:
        forced = matcher.forced()
        if not forced:
            mask = allocate(1, tokenizer.vocab_size)
            matcher.fill(mask, 0)
            forced = allowed_ids(mask, 0)[:1]
        matcher.advance(forced)
        tokens += forced
    text = '{"location":"Paris"}'
    assert tokenizer.decode(tokens) == text
    assert tokens == tokenizer.encode(text)
