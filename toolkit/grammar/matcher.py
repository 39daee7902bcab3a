"""Matcher: the state of one llguidance grammar over one sequence, behind the contract of `toolkit.contracts.Matcher`.

In: token ids.   Out: masks int32 [B, ceil(V/32)], forced tokens, verdicts.
Knows nothing about: how the grammar was written.
Invariants: control tokens are never allowed and the end tokens exactly where `is_accepting`, whatever the grammar says; the
native state never sees an end token (taking one back there takes back the last real token instead) and never a token it did
not say yes to (a refused one poisons it for good). Every native call is bounded by the limits it was compiled with.
Source: llguidance's LLMatcher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from toolkit.contracts import Mask
from toolkit.errors import SchemaError, UsageError


@dataclass(frozen=True, slots=True)
class TokenSets:
    """What the vocabulary says before any grammar does: rows [ceil(V/32)] of a mask."""

    text: npt.NDArray[np.int32]  # every token but control and end tokens
    end: npt.NDArray[np.int32]  # the end tokens
    special: frozenset[int]  # control and end tokens, as ids
    vocab_size: int


class LLMatcher:
    """One state; `fork` copies it. Not thread-safe: one owner at a time."""

    __slots__ = ("_consumed", "_native", "_sets")

    def __init__(self, native: Any, sets: TokenSets, consumed: int = 0) -> None:
        self._native = native
        self._sets = sets
        self._consumed = consumed

    def fill(self, mask: Mask, row: int) -> None:
        """Write the allowed set into mask[row]. Raises SchemaError at a dead end or where a limit of the grammar is hit."""
        line = mask[row]
        if not (mask.dtype == np.int32 and line.shape == self._sets.text.shape and line.flags["C_CONTIGUOUS"]):
            raise UsageError(
                f"mask of {mask.dtype} {mask.shape} does not fit: an int32 array [rows, {self._sets.text.size}] is needed"
            )
        self._native.unsafe_compute_mask_ptr(line.ctypes.data, line.nbytes)
        self._check()
        np.bitwise_and(line, self._sets.text, out=line)
        if self.is_accepting:
            np.bitwise_or(line, self._sets.end, out=line)
        elif not line.any():
            raise SchemaError("the grammar leads nowhere: no token of this vocabulary may follow, and it may not end here")

    def advance(self, tokens: Sequence[int]) -> None:
        """Consume tokens (no end token). Raises UsageError, unchanged, if one is not allowed."""
        ids = [int(token) for token in tokens]
        good = self.accepts(ids)
        if good < len(ids):
            raise UsageError(f"token {ids[good]} at position {good} is not allowed by the grammar: ask `fill` what is")
        if ids and not self._native.consume_tokens(ids):
            self._check()
        self._consumed += len(ids)

    def accepts(self, tokens: Sequence[int]) -> int:
        """How many leading tokens could be consumed now; changes nothing."""
        ids = [int(token) for token in tokens]
        known = next(
            (i for i, id_ in enumerate(ids) if id_ in self._sets.special or not 0 <= id_ < self._sets.vocab_size), None
        )
        good: int = self._native.validate_tokens(ids[:known])
        self._check()
        return good

    def rollback(self, n: int) -> None:
        """Undo the last n tokens; UsageError beyond what was consumed."""
        if not 0 <= n <= self._consumed:
            raise UsageError(f"rollback of {n} tokens is not allowed: 0 to {self._consumed} were consumed")
        if n:
            self._native.rollback(n)
            self._check()
            self._consumed -= n

    def fork(self) -> LLMatcher:
        """An independent copy."""
        return LLMatcher(self._native.deep_copy(), self._sets, self._consumed)

    def forced(self) -> list[int]:
        """Tokens that must follow, [] where there is a choice; no end token."""
        tokens: list[int] = self._native.compute_ff_tokens()
        self._check()
        stop = next((i for i, token in enumerate(tokens) if token in self._sets.special), len(tokens))
        return tokens[:stop]

    @property
    def is_accepting(self) -> bool:
        """Whether the text so far is a whole text of the grammar."""
        return bool(self._native.is_accepting())

    @property
    def is_stopped(self) -> bool:
        """Whether nothing but the end may follow."""
        if not self.is_accepting or self._native.is_stopped():
            return self.is_accepting
        line = np.empty_like(self._sets.text)  # the native verdict comes late in some states
        self._native.unsafe_compute_mask_ptr(line.ctypes.data, line.nbytes)
        self._check()
        return not np.bitwise_and(line, self._sets.text).any()

    def _check(self) -> None:
        if self._native.is_error():
            reason = self._native.get_error().partition("<")[0].strip()
            raise SchemaError(f"the grammar hit a limit after {self._consumed} tokens: {reason[:300]}", hint="simplify it")
