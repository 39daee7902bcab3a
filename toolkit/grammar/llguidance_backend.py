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
from collections.abc import Sequence
from typing import Any

from toolkit.contracts import Grammar, Json, Tokenizer
from toolkit.errors import InputError, SchemaError, UsageError
from toolkit.grammar.limits import Limits
from toolkit.grammar.mask import pack
from toolkit.grammar.matcher import LLMatcher, TokenSets
from toolkit.grammar.probe import CRASHED, OUT_OF_TIME, PROBE
from toolkit.grammar.relax import locate, prepared, relax, unenforced
from toolkit.schema import OutOfTime, charge, deadline, parse_json, schema_of, seconds_left

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
_MOST_TOKENIZERS = 8
_LOCK = threading.Lock()


def _loaded(tokenizer: Tokenizer) -> _Loaded:
    with _LOCK:  # held while building: a second caller waits for the first rather than building twice
        if tokenizer.fingerprint not in _TOKENIZERS:
            while len(_TOKENIZERS) >= _MOST_TOKENIZERS:
                del _TOKENIZERS[next(iter(_TOKENIZERS))]
            _TOKENIZERS[tokenizer.fingerprint] = _Loaded(tokenizer)
        return _TOKENIZERS[tokenizer.fingerprint]


class _Engine:
    """Native compiling for one grammar: each text first in the probe, all of them within the deadline of the caller."""

    def __init__(self, loaded: _Loaded, limits: Limits) -> None:
        self.loaded = loaded
        self._limits = {
            "max_items_in_row": limits.row_items,
            "initial_lexer_fuel": limits.lexer_fuel,
            "step_lexer_fuel": limits.step_fuel,
            "step_max_items": limits.step_items,
            "max_lexer_states": limits.lexer_states,
            "max_grammar_size": limits.grammar_size,
        }

    def error_of(self, text: str) -> str:
        """Why a grammar in the engine's own text does not compile, "" where it does. Raises OutOfTime."""
        error, used = PROBE.error_of(text, seconds_left() / 2, self._limits)  # the other half is for the same work in here
        charge(used)
        if error == OUT_OF_TIME:
            raise OutOfTime
        if error == CRASHED:
            raise SchemaError(f"the grammar does not compile: {error}", hint="simplify it")
        return error

    def native(self, text: str) -> Any:
        """The matcher of a text that `error_of` let pass."""
        import llguidance

        limits = llguidance.LLParserLimits(**self._limits, verbose_errors=False)
        matcher = llguidance.LLMatcher(self.loaded.native, text, log_level=0, limits=limits)
        if matcher.is_error():  # a limit that only the larger vocabulary reaches
            raise SchemaError(f"the grammar does not compile: {matcher.get_error()[:500]}")
        return matcher

    def schema_text(self, schema: Json, options: dict[str, object]) -> str:
        """A schema as the engine's own text. ValueError where the native reader cannot hold it."""
        import llguidance

        text: str = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options)
        return text

    def schema_error(self, schema: Json, options: dict[str, object]) -> str:
        seconds_left()
        try:
            return self.error_of(self.schema_text(schema, options))
        except ValueError as error:  # nested deeper than the native reader goes
            return str(error)


def build(grammar: Grammar, tokenizer: Tokenizer, limits: Limits) -> tuple[LLMatcher, tuple[str, ...]]:
    """The first state of a grammar, and what its mask does not enforce.

    Raises SchemaError for what does not compile, or not within `limits.seconds`.
    """
    engine = _Engine(_loaded(tokenizer), limits)  # once for all grammars: not on this one's account
    compiled = _json_schema if grammar.kind == "json_schema" else _plain
    try:
        with deadline(limits.seconds):
            native, partial = compiled(grammar, engine, limits)
    except OutOfTime:
        raise SchemaError(
            f"the {grammar.kind} does not compile: no end within {limits.seconds} s of CPU time", hint="simplify it"
        ) from None
    return LLMatcher(native, engine.loaded.sets), partial


def _plain(grammar: Grammar, engine: _Engine, limits: Limits) -> tuple[Any, tuple[str, ...]]:
    text = _plain_text(grammar, limits)
    error = engine.error_of(text)
    if error:
        raise SchemaError(f"{grammar.kind} does not compile: {error[:500]}", keyword=grammar.kind)
    return engine.native(text), ()


def _plain_text(grammar: Grammar, limits: Limits) -> str:
    import llguidance

    if grammar.kind == "regex":
        return str(llguidance.LLMatcher.grammar_from_regex(unanchored(grammar.source)))
    if grammar.kind == "choices":
        return str(llguidance.LLMatcher.grammar_from_regex(_alternatives(choices_of(grammar.source, limits.choices))))
    return str(llguidance.LLMatcher.grammar_from_lark(_as_lark(grammar.source)))


def _json_schema(grammar: Grammar, engine: _Engine, limits: Limits) -> tuple[Any, tuple[str, ...]]:
    """Strictly; else with unsupported keywords ignored; else also without those that llguidance stumbles over."""
    schema = schema_of(grammar.source)
    if schema is False:
        raise SchemaError("the schema is false: nothing is valid", keyword="false")
    schema, dropped = prepared({} if schema is True else schema, limits.multiple_of)
    error = engine.schema_error(schema, _STRICT)
    if not error:
        return engine.native(engine.schema_text(schema, _STRICT)), tuple(dropped)
    for _ in range(_RELAX_ROUNDS):
        error = engine.schema_error(schema, _LENIENT)
        if not error:
            native = engine.native(engine.schema_text(schema, _LENIENT))
            return native, tuple(dict.fromkeys([*dropped, *unenforced(schema, native.get_grammar_warnings())]))
        schema, more = relax(schema, error, lambda pattern: not engine.schema_error({"pattern": pattern}, _LENIENT))
        dropped += more
        if not more:
            break
    path, keyword = locate(schema, error, lambda each: engine.schema_error(each, _LENIENT))
    raise SchemaError(f"the schema does not compile at {path or 'the root'}: {error[:500]}", path=path, keyword=keyword)


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
    """One regex, hence one lexeme: as alternatives of a grammar, thousands of choices would hit the engine's row limit."""
    return "|".join(map(re.escape, dict.fromkeys(choices)))


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
