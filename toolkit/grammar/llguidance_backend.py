"""llguidance backend: grammars of every kind to native matchers.

In: `Grammar`, `Tokenizer`, `Limits`.   Out: the first `LLMatcher` and what its mask leaves to the validator.
Knows nothing about: caching, sequences.
Invariants: JSON is compact (no white space between tokens, so that none can be repeated for ever) and holds printable characters
as themselves; a regex or a choice must match as a whole; the schema's own "x-guidance" options have no effect.
Source: llguidance 1.9; JSON Schema per its documentation, otherwise left to the validator.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

from toolkit.contracts import Grammar, Json, Tokenizer
from toolkit.errors import InputError, SchemaError, UsageError
from toolkit.grammar.limits import Limits
from toolkit.grammar.mask import pack
from toolkit.grammar.matcher import LLMatcher, TokenSets
from toolkit.grammar.relax import locate, relax, unenforced, whole_counts
from toolkit.schema import check_schema, parse_json

_RELAX_ROUNDS = 8
_STRICT = {
    "whitespace_flexible": False,
    "item_separator": ",",
    "key_separator": ":",
    "lenient": False,
    "coerce_one_of": False,
}
_LENIENT = {**_STRICT, "lenient": True, "coerce_one_of": True}


class _Vocabulary:
    """A tokenizer in the shape that llguidance's TokenizerWrapper asks for."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, special: frozenset[int]) -> None:
        self._encode = tokenizer.encode
        self.eos_token_id = tokenizer.eos_ids[0]
        self.special_token_ids = sorted(special)
        self.tokens = [
            b"<special %d>" % id_ if id_ in special else tokenizer.token_bytes(id_) for id_ in range(tokenizer.vocab_size)
        ]

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text.decode("utf-8") if isinstance(text, bytes) else text)


class _Loaded:
    """A tokenizer inside llguidance, and its token sets."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        import llguidance

        if not tokenizer.eos_ids:
            raise UsageError("the tokenizer has no end token (eos_ids is empty): a constrained text could never end")
        special = tokenizer.control_ids | frozenset(tokenizer.eos_ids)
        vocabulary = _Vocabulary(tokenizer, special)
        self.native = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(vocabulary), n_vocab=tokenizer.vocab_size, eos_token=list(tokenizer.eos_ids)
        )
        usable = [id_ for id_, token in enumerate(vocabulary.tokens) if token and id_ not in special]
        self.sets = TokenSets(
            text=pack(usable, tokenizer.vocab_size),
            end=pack(tokenizer.eos_ids, tokenizer.vocab_size),
            special=special,
            vocab_size=tokenizer.vocab_size,
        )


_TOKENIZERS: dict[str, _Loaded] = {}
_LOCK = threading.Lock()


def _loaded(tokenizer: Tokenizer) -> _Loaded:
    with _LOCK:  # held while building: a second caller waits for the first rather than building twice
        if tokenizer.fingerprint not in _TOKENIZERS:
            _TOKENIZERS[tokenizer.fingerprint] = _Loaded(tokenizer)
        return _TOKENIZERS[tokenizer.fingerprint]


class _Attempt:
    """One native compile: a matcher and its warnings, or an error."""

    def __init__(self, loaded: _Loaded, source: Callable[[], str], limits: Limits) -> None:
        import llguidance

        native_limits = llguidance.LLParserLimits(
            max_items_in_row=limits.row_items,
            initial_lexer_fuel=limits.lexer_fuel,
            step_lexer_fuel=limits.step_fuel,
            step_max_items=limits.step_items,
            max_lexer_states=limits.lexer_states,
            max_grammar_size=limits.grammar_size,
            verbose_errors=False,
        )
        self.native: Any = None
        self.warnings: list[str] = []
        try:
            self.native = llguidance.LLMatcher(loaded.native, source(), log_level=0, limits=native_limits)
        except ValueError as error:  # such as a schema nested too deep for the native reader
            self.error = str(error)
        else:
            self.error = self.native.get_error()
            self.warnings = [] if self.error else self.native.get_grammar_warnings()


def build(grammar: Grammar, tokenizer: Tokenizer, limits: Limits) -> tuple[LLMatcher, tuple[str, ...]]:
    """The first state of a grammar, and what its mask does not enforce. Raises SchemaError for what does not compile."""
    import llguidance

    loaded = _loaded(tokenizer)
    partial: tuple[str, ...] = ()
    if grammar.kind == "json_schema":
        native, partial = _json_schema(grammar.source, loaded, limits)
    elif grammar.kind == "regex":
        pattern = unanchored(grammar.source)
        native = _plain("regex", lambda: llguidance.LLMatcher.grammar_from_regex(pattern), loaded, limits)
    elif grammar.kind == "choices":
        choices = choices_of(grammar.source, limits.choices)
        native = _plain("choices", lambda: llguidance.LLMatcher.grammar_from_lark(_alternatives(choices)), loaded, limits)
    else:
        source = _as_lark(grammar.source)
        native = _plain("lark", lambda: llguidance.LLMatcher.grammar_from_lark(source), loaded, limits)
    return LLMatcher(native, loaded.sets), partial


def _plain(kind: str, source: Callable[[], str], loaded: _Loaded, limits: Limits) -> Any:
    attempt = _Attempt(loaded, source, limits)
    if attempt.error:
        raise SchemaError(f"{kind} does not compile: {attempt.error[:500]}", keyword=kind)
    return attempt.native


def _json_schema(source: str, loaded: _Loaded, limits: Limits) -> tuple[Any, tuple[str, ...]]:
    """Strictly; else with unsupported keywords ignored; else also without those that llguidance stumbles over."""
    import llguidance

    try:
        schema = parse_json(source, max_chars=limits.source_chars)
    except InputError as error:
        raise SchemaError(f"the schema is not JSON: {error.message}") from None
    check_schema(schema)
    if schema is False:
        raise SchemaError("the schema is false: nothing is valid", keyword="false")
    schema = {} if schema is True else {key: value for key, value in whole_counts(schema).items() if key != "x-guidance"}

    def attempt(value: Json, options: dict[str, object]) -> _Attempt:
        text = json.dumps(value)
        return _Attempt(loaded, lambda: llguidance.LLMatcher.grammar_from_json_schema(text, overrides=options), limits)

    tried = attempt(schema, _STRICT)
    if not tried.error:
        return tried.native, ()
    relaxed, dropped = schema, list[str]()
    for _ in range(_RELAX_ROUNDS):
        tried = attempt(relaxed, _LENIENT)
        if not tried.error:
            return tried.native, tuple(dict.fromkeys([*dropped, *unenforced(relaxed, tried.warnings)]))
        relaxed, more = relax(relaxed, tried.error, lambda pattern: not attempt({"pattern": pattern}, _LENIENT).error)
        dropped += more
        if not more:
            break
    path, keyword = locate(schema, tried.error, lambda value: attempt(value, _LENIENT).error)
    raise SchemaError(f"the schema does not compile at {path or 'the root'}: {tried.error[:500]}", path=path, keyword=keyword)


def unanchored(pattern: str) -> str:
    r"""A regex without anchors at its ends (^ \A $ \Z \z), which say nothing where the whole text must match."""
    pattern = re.sub(r"^(?:\^|\\A)", "", pattern)
    return re.sub(r"(?<!\\)((?:\\\\)*)(?:\$|\\Z|\\z)$", r"\1", pattern)


def choices_of(source: str, most: int) -> list[str]:
    """The strings of a choices grammar. Raises SchemaError unless it is a JSON list of 1 to `most` distinct strings."""
    try:
        choices = parse_json(source)
    except InputError as error:
        raise SchemaError(f"choices are not JSON: {error.message}", keyword="choices") from None
    if not isinstance(choices, list) or not all(isinstance(each, str) for each in choices):
        raise SchemaError("choices must be a JSON list of strings", keyword="choices")
    if not 0 < len(choices) <= most:
        raise SchemaError(f"{len(choices)} choices are not allowed: 1 to {most}", keyword="choices")
    return choices


def _alternatives(choices: Sequence[str]) -> str:
    return "start: " + " | ".join(json.dumps(each) for each in dict.fromkeys(choices))


def _as_lark(source: str) -> str:
    """Lark as it is; GBNF (`root ::= ...`, llama.cpp) converted."""
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        converted: str = any_to_lark(source)
    except (Exception, RecursionError) as error:  # the converter raises bare Exception
        raise SchemaError(
            f"the grammar is neither Lark (start: ...) nor GBNF (root ::= ...): {error}", keyword="lark"
        ) from None
    return converted
