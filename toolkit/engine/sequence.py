"""Sequence: one line of tokens with its KV blocks and its grammar state. Beams, samples, forks and drafts are all this.

    tokens   [ prompt ............ | generated ............ ]
    table    [ computed ................ ] pending ........      pending tokens have no keys and values yet
    or       [ computed ........................ ][ nodes ]      a draft tree hangs there from the pass that computed it to `settle`

Verbs: fork, advance, rollback, restart, settle, check. Laws: a fork never writes into its parent; advance then rollback is the identity.
Knows nothing about: the model, samplers, schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Tokens

from toolkit.contracts import Matcher
from toolkit.errors import EngineError, SchemaError, UsageError
from toolkit.kv.table import BlockTable

Move = Callable[[Tokens[int], Tokens[int]], None]  # copy cache slots (sources, targets), every layer


class Sequence:
    """Tokens, block table and matcher of one hypothesis. The end token is never part of it: loops keep that themselves."""

    def __init__(
        self, prompt: Tokens[int], table: BlockTable, matcher: Matcher | None = None, move: Move | None = None
    ) -> None:
        self.tokens = list(prompt)
        self.prompt_length = len(self.tokens)
        self.table = table
        self.matcher = matcher
        self.nodes = 0  # of a draft tree, at the end of the table
        self.restored = 0  # tokens of the prompt whose keys and values came out of files
        self.is_wary = False  # computes everything itself: nothing is taken out of a prefix cache
        self._move = move

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def pending(self) -> int:
        """Tokens that the model has not seen yet."""
        return len(self.tokens) - self.computed

    @property
    def computed(self) -> int:
        """Tokens whose keys and values are in the cache."""
        return self.table.length - self.nodes

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
        self._refuse_nodes("roll back")
        if n == 0:
            return
        if self.matcher is not None:
            self.matcher.rollback(n)
        del self.tokens[-n:]
        if self.table.length > len(self.tokens):
            self.table.truncate(len(self.tokens))

    def restart(self, matcher: Matcher | None, *, trusted: int = 0) -> None:
        """Back to the prompt with a fresh matcher; its keys and values are kept for its first `trusted` tokens, found in no cache."""
        del self.tokens[self.prompt_length :]
        self.nodes = 0
        self.table.truncate(min(trusted, self.table.length))
        self.matcher = matcher
        self.is_wary = True

    def settle(self, path: Tokens[int]) -> None:
        """Keep the nodes `path` (root first) of the tree that hangs here, in order, as if they had been computed as a chain.

        Their tokens must have been appended before. All other nodes' slots and blocks are given back.
        """
        start = self.computed
        if not start + len(path) <= len(self.tokens):
            raise EngineError(f"{len(path)} nodes cannot be kept: only {len(self.tokens) - start} tokens were appended")
        if any(not 0 <= node < self.nodes for node in path):
            raise EngineError(f"nodes {list(path)} cannot be kept: the tree has {self.nodes}")
        if list(path) != list(range(len(path))):
            if self._move is None:
                raise EngineError("a sequence that cannot move cache slots keeps only the leading nodes of a tree")
            slots = self.table.slots(start, self.table.length)
            self._move([slots[node] for node in path], slots[: len(path)])
        self.nodes = 0
        self.table.truncate(start + len(path))

    def fork(self) -> Sequence:
        """An independent copy over shared blocks."""
        self._refuse_nodes("fork")
        matcher = self.matcher.fork() if self.matcher is not None else None
        twin = Sequence(self.tokens, self.table.fork(), matcher, self._move)
        twin.prompt_length = self.prompt_length
        return twin

    def release(self) -> None:
        """Give the blocks back."""
        self.nodes = 0
        self.table.release()

    def check(self) -> None:
        """Raise EngineError unless tokens and table agree."""
        self.table.check()
        if not 0 <= self.computed <= len(self.tokens):
            raise EngineError(f"{self.computed} tokens are cached but the sequence has only {len(self.tokens)}")

    def _refuse_nodes(self, verb: str) -> None:
        if self.nodes:
            raise EngineError(f"a sequence with a draft tree of {self.nodes} nodes cannot {verb}: settle it first")
