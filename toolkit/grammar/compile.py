"""Compile: a grammar and a tokenizer to something that makes matchers, once for each pair.

In: `Grammar`, `Tokenizer`, `Limits`.   Out: a CompiledGrammar, from a cache where it was met before.
Knows nothing about: llguidance, which has its own file.
Invariants: a compiled grammar's language is inside that of its source unless `partial` names what is left to the validator;
a grammar without any text is refused.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from toolkit.contracts import CompiledGrammar, Grammar, Tokenizer
from toolkit.errors import SchemaError
from toolkit.grammar.limits import DEFAULT_LIMITS, Limits
from toolkit.grammar.llguidance_backend import build
from toolkit.grammar.mask import allocate
from toolkit.grammar.matcher import LLMatcher
from toolkit.grammar.spelled import check_spelled

CACHE_SIZE = 256


class Compiled:
    """A grammar ready for one tokenizer. Thread-safe: the first state is only ever copied."""

    def __init__(self, first: LLMatcher, partial: tuple[str, ...]) -> None:
        self.partial = partial
        self._first = first

    def matcher(self) -> LLMatcher:
        """A fresh state at the start of the text."""
        return self._first.fork()


class _Cache:
    """Least recently used out first. Two threads may compile the same grammar at once; the first result stays."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._rows: OrderedDict[object, CompiledGrammar] = OrderedDict()

    def get(self, key: object) -> CompiledGrammar | None:
        with self._lock:
            if key in self._rows:
                self._rows.move_to_end(key)
            return self._rows.get(key)

    def put(self, key: object, value: CompiledGrammar) -> CompiledGrammar:
        with self._lock:
            value = self._rows.setdefault(key, value)
            while len(self._rows) > self._size:
                self._rows.popitem(last=False)
            return value


_CACHE = _Cache(CACHE_SIZE)


def compile_grammar(grammar: Grammar, tokenizer: Tokenizer, *, limits: Limits = DEFAULT_LIMITS) -> CompiledGrammar:
    """Compile, or find what was compiled. Raises SchemaError (path and keyword where known) for a bad or empty grammar, UnsupportedError for a literal in it that is a control token of the tokenizer."""
    key = (grammar, tokenizer.fingerprint, limits)
    found = _CACHE.get(key)
    if found is not None:
        return found
    if len(grammar.source) > limits.source_chars:
        raise SchemaError(
            f"the {grammar.kind} has {len(grammar.source)} characters: at most {limits.source_chars} are compiled"
        )
    if grammar.kind == "lark":
        check_spelled(grammar.source, tokenizer)
    first, partial = build(grammar, tokenizer, limits)
    first.fork().fill(allocate(1, tokenizer.vocab_size), 0)  # refuses a language without any text
    return _CACHE.put(key, Compiled(first, (*grammar.partial, *partial)))
