"""State machine of sequences over a real cache: fork, advance, rollback, passes, draft trees, settle, restart, release in any order.

After every step the books balance, each sequence is what a plain list of tokens says, and every key and value that it holds
is what a model without a cache computes for its tokens from nothing - bitwise in int8, up to rounding in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, precondition, rule
from torch import Tensor

from toolkit.draft.tree import ROOT, DraftTree
from toolkit.engine.forward import Feed, Forward
from toolkit.engine.load import load
from toolkit.engine.sequence import Sequence as Line
from toolkit.errors import EngineError

PROMPT = (84, 101, 108, 108, 32, 109)
BLOCK, BLOCKS = 4, 96
MOST = 6  # sequences at a time
LONGEST = 40  # tokens of a sequence: every one of them is recomputed after every step
TOKENS = st.integers(0, 255)


@cache
def forward_of(form: str, blocks: int) -> Forward:
    """`blocks` tells a shared one from the twin's."""
    loaded = load("tiny", device="cpu", dtype="float32", format=form)
    return Forward(
        loaded.decoder, vocab_size=loaded.tokenizer.vocab_size, kv_blocks=blocks, block_size=BLOCK, device=torch.device("cpu")
    )


class Twin:
    """Keys, values [L, Hkv, n, Dh] and logits [n, V] of a whole text, computed in one pass over nothing but itself."""

    def __init__(self, form: str) -> None:
        self._forward = forward_of(form, 64)
        self._known: dict[tuple[int, ...], tuple[Tensor, Tensor, Tensor]] = {}

    def __call__(self, tokens: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        key = tuple(tokens)
        if key not in self._known:
            line = Line(key, self._forward.table())
            (logits,) = self._forward([Feed(line, len(key), len(key))])
            slots = line.table.slots(0, len(key))
            store = self._forward.store
            self._known[key] = (store.keys[:, :, slots].clone(), store.values[:, :, slots].clone(), logits.clone())
            line.release()
        return self._known[key]


@cache
def twin_of(form: str) -> Twin:
    return Twin(form)


@dataclass(eq=False)
class Pair:
    """A sequence and the list that says what it must be."""

    line: Line
    tokens: list[int]
    computed: int = 0


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    """1 to 8 nodes, siblings distinct."""
    tokens: list[int] = []
    parent: list[int] = []
    for node in range(draw(st.integers(1, 8))):
        at = draw(st.integers(ROOT, node - 1))
        taken = {tokens[i] for i in range(node) if parent[i] == at}
        tokens.append(draw(TOKENS.filter(lambda token, taken=taken: token not in taken)))  # type: ignore[misc]
        parent.append(at)
    return DraftTree(tuple(tokens), tuple(parent))


class Machine(RuleBasedStateMachine):
    """`form` is the number format; see the module."""

    form = "int8"
    tolerance = 0.0
    pairs = Bundle("pairs")

    @initialize(target=pairs)
    def begin(self) -> Pair:
        self.forward = forward_of(self.form, BLOCKS)
        self.twin = twin_of(self.form)
        self.live: list[Pair] = []
        return self._new()

    @rule(target=pairs)
    def another_text(self) -> Pair:
        return self._new() if len(self.live) < MOST else multiple()  # type: ignore[return-value]

    @rule(pair=pairs, target=pairs)
    def forks(self, pair: Pair) -> Pair:
        return self.fork(pair) if len(self.live) < MOST else multiple()  # type: ignore[return-value]

    def fork(self, pair: Pair) -> Pair:
        self.live.append(Pair(pair.line.fork(), list(pair.tokens), pair.computed))
        return self.live[-1]

    @rule(pair=pairs, a=TOKENS, b=TOKENS, target=pairs)
    def part(self, pair: Pair, a: int, b: int) -> Pair:
        """A fork and its parent go on in one pass, whatever stands in their last common block."""
        if len(self.live) == MOST or len(pair.tokens) == LONGEST:
            return multiple()  # type: ignore[return-value]
        twin = self.fork(pair)
        for each, token in ((pair, a), (twin, b)):
            self.advance(each, [token])
        self._pass([(each, each.line.pending) for each in (pair, twin)])
        return twin

    @rule(pair=pairs, tokens=st.lists(TOKENS, max_size=4))
    def advance(self, pair: Pair, tokens: list[int]) -> None:
        if len(pair.tokens) + len(tokens) <= LONGEST:
            pair.line.advance(tokens)
            pair.tokens += tokens

    @rule(pair=pairs, n=st.integers(1, 6))
    def rollback(self, pair: Pair, n: int) -> None:
        generated = len(pair.tokens) - len(PROMPT)
        with pytest.raises(EngineError, match=f"{generated} were generated"):
            pair.line.rollback(generated + n)
        n = min(n, generated)
        pair.line.rollback(n)
        del pair.tokens[len(pair.tokens) - n :]
        pair.computed = min(pair.computed, len(pair.tokens))

    @rule(pair=pairs, tokens=st.lists(TOKENS, max_size=3))
    def advance_then_rollback_is_the_identity(self, pair: Pair, tokens: list[int]) -> None:
        pair.line.advance(tokens)
        pair.line.rollback(len(tokens))

    @rule(chosen=st.lists(pairs, min_size=1, max_size=4), data=st.data())
    def a_pass_over_several(self, chosen: list[Pair], data: st.DataObject) -> None:
        """Some pending tokens of some sequences; the row of the last one fed must be the twin's."""
        fed = [pair for pair in dict.fromkeys(chosen) if pair.line.pending]
        self._pass([(pair, data.draw(st.integers(1, pair.line.pending))) for pair in fed])

    @rule(chosen=st.lists(st.tuples(pairs, trees()), min_size=1, max_size=3), data=st.data())
    def a_draft_pass(self, chosen: list[tuple[Pair, DraftTree]], data: st.DataObject) -> None:
        """Trees behind what is pending, walked down some way, settled; further tokens may have come with the last one."""
        drafted = {pair: tree for pair, tree in chosen if pair.line.pending and len(pair.tokens) + tree.depth < LONGEST}
        if not drafted:
            return
        found = self.forward([Feed(pair.line, pair.line.pending, 1, tree) for pair, tree in drafted.items()])
        for (pair, tree), rows in zip(drafted.items(), found, strict=True):
            pair.computed = len(pair.tokens)
            for node, path in enumerate(tree.paths):
                text = [*pair.tokens, *(tree.tokens[i] for i in path)]
                self._equal(rows[1 + node], self.twin(text)[2][-1])
            self._refuses_while_it_hangs(pair)
            path = data.draw(st.sampled_from(((), *tree.paths)))
            tokens = [*(tree.tokens[node] for node in path), *data.draw(st.lists(TOKENS, max_size=2))]
            pair.line.advance(tokens)
            pair.tokens += tokens
            pair.line.settle(path)
            pair.computed += len(path)

    @rule(pair=pairs)
    def restart(self, pair: Pair) -> None:
        pair.line.restart(None)
        del pair.tokens[len(PROMPT) :]
        pair.computed = 0

    @precondition(lambda self: len(self.live) > 1)
    @rule(pair=consumes(pairs))
    def release(self, pair: Pair) -> None:
        pair.line.release()
        pair.line.release()  # harmless
        self.live.remove(pair)

    @invariant()
    def every_sequence_is_its_list(self) -> None:
        for pair in self._live():
            pair.line.check()
            assert pair.line.tokens == pair.tokens
            assert (pair.line.computed, pair.line.nodes) == (pair.computed, 0)

    @invariant()
    def what_is_cached_is_what_its_tokens_alone_give(self) -> None:
        for pair in self._live():
            if pair.computed:
                keys, values, _ = self.twin(pair.tokens[: pair.computed])
                slots = pair.line.table.slots(0, pair.computed)
                self._equal(self.forward.store.keys[:, :, slots], keys)
                self._equal(self.forward.store.values[:, :, slots], values)

    @invariant()
    def each_block_is_held_by_who_has_it(self) -> None:
        held = [block for pair in self._live() for block in pair.line.table.blocks]
        pool = self.forward.pool if hasattr(self, "forward") else forward_of(self.form, BLOCKS).pool
        pool.check()
        assert pool.in_use == len(set(held))
        assert all(pool.holders(block) == held.count(block) for block in set(held))

    def teardown(self) -> None:
        for pair in self._live():
            pair.line.release()
        assert forward_of(self.form, BLOCKS).pool.in_use == 0

    def _pass(self, fed: Sequence[tuple[Pair, int]]) -> None:
        rows = self.forward([Feed(pair.line, count, 1) for pair, count in fed]) if fed else []
        for (pair, count), row in zip(fed, rows, strict=True):
            pair.computed += count
            self._equal(row[0], self.twin(pair.tokens[: pair.computed])[2][-1])

    def _new(self) -> Pair:
        self.live.append(Pair(Line(PROMPT, self.forward.table(), None, self.forward.store.move), list(PROMPT)))
        return self.live[-1]

    def _live(self) -> Iterator[Pair]:
        return iter(getattr(self, "live", ()))

    def _refuses_while_it_hangs(self, pair: Pair) -> None:
        with pytest.raises(EngineError, match="settle it first"):
            pair.line.fork()
        with pytest.raises(EngineError, match="cannot be kept"):
            pair.line.settle([pair.line.nodes])

    def _equal(self, found: Tensor, hoped: Tensor) -> None:
        if self.tolerance == 0.0:
            assert torch.equal(found, hoped)
        else:
            torch.testing.assert_close(found, hoped, rtol=0, atol=self.tolerance)


class FloatMachine(Machine):
    form = "float32"
    tolerance = 1e-4


BOUNDED = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate,),  # what fails is shown as it is: to shrink it takes minutes
)
Machine.TestCase.settings = BOUNDED
FloatMachine.TestCase.settings = settings(BOUNDED, max_examples=8)
TestInt8 = Machine.TestCase
TestFloat32 = FloatMachine.TestCase
