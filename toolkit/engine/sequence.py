"""Sequence: one line of tokens with its KV blocks and its grammar state. Beams, samples, forks and drafts are all this.

    tokens   [ prompt ............ | generated ............ ]
    table    [ computed ................ ] pending ........      pending tokens have no keys and values yet

Verbs: fork, advance, rollback, check. Laws: a fork never writes into its parent; advance then rollback is the identity.
Knows nothing about: the model, samplers, schedules.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens

from toolkit.contracts import Matcher
from toolkit.errors import EngineError, SchemaError, UsageError
from toolkit.kv.table import BlockTable


class Sequence:
    """Tokens, block table and matcher of one hypothesis. The end token is never part of it: loops keep that themselves."""

    def __init__(self, prompt: Tokens[int], table: BlockTable, matcher: Matcher | None = None) -> None:
        self.tokens = list(prompt)
        self.prompt_length = len(self.tokens)
        self.table = table
        self.matcher = matcher

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def pending(self) -> int:
        """Tokens that the model has not seen yet."""
        return len(self.tokens) - self.table.length

    @property
    def max_rollback(self) -> int:
        return len(self.tokens) - self.prompt_length

    def advance(self, tokens: Tokens[int]) -> None:
        """Append tokens; raises, unchanged, if the grammar does not allow them."""
        if self.matcher is not None:
            self.matcher.advance(tokens)
        self.tokens.extend(tokens)

    def follow(self, tokens: Tokens[int]) -> None:
        """Append tokens that the mask allowed or the grammar forced; SchemaError if the grammar engine refuses them all the same."""
        try:
            self.advance(tokens)
        except UsageError as error:
            raise SchemaError(
                "the grammar engine refuses a token that its own mask allowed: the grammar is beyond its limits",
                hint="use fewer and smaller nested repetitions",
            ) from error

    def rollback(self, n: int) -> None:
        """Undo the last n generated tokens, their keys and values included."""
        if not 0 <= n <= self.max_rollback:
            raise EngineError(f"cannot roll back {n} tokens: {self.max_rollback} were generated")
        if n == 0:
            return
        if self.matcher is not None:
            self.matcher.rollback(n)
        del self.tokens[-n:]
        if self.table.length > len(self.tokens):
            self.table.truncate(len(self.tokens))

    def fork(self) -> Sequence:
        """An independent copy over shared blocks."""
        twin = Sequence(self.tokens, self.table.fork(), self.matcher.fork() if self.matcher is not None else None)
        twin.prompt_length = self.prompt_length
        return twin

    def release(self) -> None:
        """Give the blocks back; the sequence must not be used afterwards."""
        self.table.release()

    def check(self) -> None:
        """Raise EngineError unless tokens and table agree."""
        self.table.check()
        if self.table.length > len(self.tokens):
            raise EngineError(f"{self.table.length} tokens are cached but the sequence has only {len(self.tokens)}")
