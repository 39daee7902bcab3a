"""The matcher against its slow twin (enumeration of a finite language), and the laws of its contract."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.grammar.small_vocabulary import SmallTokenizer, allowed_ids
from toolkit.contracts import CompiledGrammar, Grammar, Matcher
from toolkit.errors import SchemaError, UsageError
from toolkit.grammar.compile import compile_grammar
from toolkit.grammar.mask import allocate, pack, unpack

TOKENIZER = SmallTokenizer()
END = TOKENIZER.eos_ids[0]
# Finite languages, written out: the twin only looks at these words.
LANGUAGES: dict[str, tuple[Grammar, list[str]]] = {
    "prefixes": (Grammar("choices", '["New","New York","Newer","é","éa"]'), ["New", "New York", "Newer", "é", "éa"]),
    "empty word": (Grammar("choices", '["","ab"]'), ["", "ab"]),
    "regex": (Grammar("regex", "(ab|abc|b)a?c{0,2}"), [x + a + "c" * n for x in ("ab", "abc", "b") for a in ("", "a") for n in (0, 1, 2)]),
    "anchored regex": (Grammar("regex", "^ab|ba$"), ["ab", "ba"]),
    "enum": (
        Grammar("json_schema", '{"enum":["a","ab",true,null,[1],{"ab":12}]}'),
        ['"a"', '"ab"', "true", "null", "[1]", '{"ab":12}'],
    ),
    "object": (
        Grammar("json_schema", '{"type":"object","properties":{"a":{"type":"boolean"},"b":{"const":"é"}},"required":["b"],"additionalProperties":false}'),
        ['{"a":true,"b":"é"}', '{"a":false,"b":"é"}', '{"b":"é"}'],
    ),
    "lark": (Grammar("lark", 'start: "a" ("b" | "bc")'), ["ab", "abc"]),
    "gbnf": (Grammar("lark", 'root ::= "a" x\nx ::= "b" | "bc"'), ["ab", "abc"]),
}  # fmt: skip


def allowed(matcher: Matcher) -> list[int]:
    mask = allocate(1, TOKENIZER.vocab_size)
    matcher.fill(mask, 0)
    return allowed_ids(mask, 0)


def twin(words: list[str], prefix: bytes) -> list[int]:
    """What the mask must be: tokens that keep some word reachable; the end where the prefix is a word."""
    encoded = [word.encode() for word in words]
    ids = [
        id_
        for id_ in range(TOKENIZER.vocab_size)
        if TOKENIZER.token_bytes(id_) and any(word.startswith(prefix + TOKENIZER.token_bytes(id_)) for word in encoded)
    ]
    return ids + ([END] if prefix in encoded else [])


def walk_everywhere(matcher: Matcher, words: list[str], prefix: bytes, seen: set[bytes]) -> None:
    """Every reachable state of a finite language, each judged by the twin."""
    if prefix in seen:
        return
    seen.add(prefix)
    ids, forced = twin(words, prefix), matcher.forced()
    shown = forced[:1] or ids  # of forced text the mask shows the canonical token only
    assert set(shown) <= set(ids)
    assert allowed(matcher) == shown, prefix
    assert matcher.is_accepting == (END in ids)
    assert matcher.is_stopped == (ids == [END])
    text = b"".join(map(TOKENIZER.token_bytes, forced))
    assert all(word.encode().startswith(prefix + text) for word in words if word.encode().startswith(prefix)), prefix
    assert matcher.accepts(forced) == len(forced)
    for id_ in ids:
        if id_ != END:
            child = matcher.fork()
            child.advance([id_])
            walk_everywhere(child, words, prefix + TOKENIZER.token_bytes(id_), seen)
    assert allowed(matcher) == shown, "a fork wrote into its parent"


@pytest.mark.parametrize("name", LANGUAGES)
def test_the_mask_is_exactly_what_keeps_a_word_reachable(name: str) -> None:
    grammar, words = LANGUAGES[name]
    seen: set[bytes] = set()
    walk_everywhere(compile_grammar(grammar, TOKENIZER).matcher(), words, b"", seen)
    assert {word.encode() for word in words} <= seen


WORDS = st.lists(st.text(alphabet='ab cé"\\\nN', max_size=6), min_size=1, max_size=6, unique=True)


@settings(max_examples=30, deadline=None)
@given(WORDS)
def test_any_choices_are_matched_exactly(words: list[str]) -> None:
    walk_everywhere(compile_grammar(Grammar("choices", json.dumps(words)), TOKENIZER).matcher(), words, b"", set())


@settings(max_examples=30, deadline=None)
@given(WORDS)
def test_any_enum_of_strings_is_matched_exactly(words: list[str]) -> None:
    words = [word.replace("\n", "") for word in words]  # has two spellings: \\n and \\u000a
    texts = [json.dumps(word, ensure_ascii=False) for word in words]
    walk_everywhere(
        compile_grammar(Grammar("json_schema", json.dumps({"enum": words})), TOKENIZER).matcher(), texts, b"", set()
    )


OPEN = Grammar(
    "json_schema",
    json.dumps({"type": "object", "properties": {"ab": {"type": "string"}, "n": {"type": "integer"}}, "required": ["ab"]}),
)


def random_walk(matcher: Matcher, steps: int, rng: random.Random) -> list[int]:
    taken: list[int] = []
    for _ in range(steps):
        ids = [id_ for id_ in allowed(matcher) if id_ != END]
        if not ids:
            break
        taken.append(rng.choice(ids))
        matcher.advance(taken[-1:])
    return taken


@pytest.mark.parametrize("seed", range(8))
def test_advance_then_rollback_is_the_identity(seed: int) -> None:
    rng = random.Random(seed)
    matcher = compile_grammar(OPEN, TOKENIZER).matcher()
    random_walk(matcher, rng.randrange(8), rng)
    before = (allowed(matcher), matcher.is_accepting, matcher.is_stopped, matcher.forced())
    taken = random_walk(matcher, 12, rng)
    matcher.rollback(len(taken))
    assert (allowed(matcher), matcher.is_accepting, matcher.is_stopped, matcher.forced()) == before
    matcher.advance(taken)


def test_rollback_from_a_stopped_state_takes_back_real_tokens() -> None:
    matcher = compile_grammar(Grammar("choices", '["abc"]'), TOKENIZER).matcher()
    matcher.advance([97, 98, 99])
    assert matcher.is_stopped
    matcher.rollback(1)
    assert not matcher.is_accepting
    assert allowed(matcher) == [99]


def test_a_refused_advance_changes_nothing() -> None:
    matcher = compile_grammar(OPEN, TOKENIZER).matcher()
    matcher.advance(TOKENIZER.encode('{"ab"'))
    before = allowed(matcher)
    for bad in ([ord("x")], [*TOKENIZER.encode(':"x"'), ord("x")], [END], [END + 1], [-1], [10_000]):
        with pytest.raises(UsageError, match="not allowed"):
            matcher.advance(bad)
        assert allowed(matcher) == before
    matcher.advance(TOKENIZER.encode(':"x"}'))
    assert matcher.is_accepting


def test_a_rollback_beyond_what_was_consumed_is_refused() -> None:
    matcher = compile_grammar(OPEN, TOKENIZER).matcher()
    matcher.advance(TOKENIZER.encode("{"))
    for n in (2, -1):
        with pytest.raises(UsageError, match="rollback"):
            matcher.rollback(n)
    fork = matcher.fork()
    fork.rollback(1)
    assert allowed(fork) == fork.forced()[:1] == [TOKENIZER.encode('{"')[0]]


def test_accepts_counts_the_good_tokens_and_changes_nothing() -> None:
    matcher = compile_grammar(OPEN, TOKENIZER).matcher()
    tokens = TOKENIZER.encode('{"ab":')
    before = allowed(matcher)
    assert matcher.accepts([*tokens, ord("1")]) == len(tokens)
    assert matcher.accepts([END]) == 0
    assert matcher.accepts([]) == 0
    assert allowed(matcher) == before


def test_control_tokens_are_never_allowed_even_where_a_grammar_asks_for_them() -> None:
    inside = compile_grammar(Grammar("json_schema", '{"type":"string"}'), TOKENIZER).matcher()
    inside.advance([ord('"')])
    assert not TOKENIZER.control_ids & set(allowed(inside))
    for token in (END, END + 1):
        with pytest.raises(SchemaError, match=r"does not compile|leads nowhere"):
            compile_grammar(Grammar("lark", f'start: <[{token}]> "a"'), TOKENIZER)


def test_accepting_and_stopped_are_two_things() -> None:
    matcher = compile_grammar(Grammar("regex", "[0-9]{1,2}"), TOKENIZER).matcher()
    assert (matcher.is_accepting, matcher.is_stopped) == (False, False)
    matcher.advance([ord("1")])
    assert (matcher.is_accepting, matcher.is_stopped) == (True, False)
    matcher.advance([ord("2")])
    assert (matcher.is_accepting, matcher.is_stopped) == (True, True)


def test_json_is_compact_and_its_strings_hold_characters_as_themselves() -> None:
    compiled = compile_grammar(Grammar("json_schema", '{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}'), TOKENIZER)  # fmt: skip
    assert full(compiled, '{"a":"é\\n"}')
    for text in ('{ "a":"x"}', '{"a": "x"}', '{"a":"x"} ', ' {"a":"x"}', '{"a":"\\u0041"}', '{"a":"\n"}'):
        assert not full(compiled, text), text


def full(compiled: CompiledGrammar, text: str) -> bool:
    matcher, tokens = compiled.matcher(), TOKENIZER.encode(text)
    if matcher.accepts(tokens) < len(tokens):
        return False
    matcher.advance(tokens)
    return matcher.is_accepting


def test_a_mask_of_the_wrong_shape_is_refused() -> None:
    matcher = compile_grammar(OPEN, TOKENIZER).matcher()
    with pytest.raises(UsageError, match="int32"):
        matcher.fill(np.zeros((1, 1), np.int32), 0)


def test_fill_writes_its_row_only() -> None:
    mask = allocate(3, TOKENIZER.vocab_size)
    mask[:] = -1
    compile_grammar(OPEN, TOKENIZER).matcher().fill(mask, 1)
    assert allowed_ids(mask, 1) == [TOKENIZER.encode('{"')[0]]
    assert (mask[[0, 2]] == -1).all()


@given(st.lists(st.integers(0, 99), max_size=30, unique=True))
def test_pack_and_unpack_are_inverse(ids: list[int]) -> None:
    mask = pack(ids, 100)[None]
    assert np.flatnonzero(unpack(mask, 100)[0]).tolist() == sorted(ids) == allowed_ids(mask, 0)
