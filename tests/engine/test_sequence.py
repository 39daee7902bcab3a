"""Laws of a sequence: a fork never writes into its parent, advance then rollback is the identity, limits are refused."""

from __future__ import annotations

import random

import numpy as np
import pytest

from toolkit.contracts import Grammar
from toolkit.engine.sequence import Sequence
from toolkit.errors import EngineError, SchemaError, UsageError
from toolkit.grammar.compile import compile_grammar
from toolkit.grammar.mask import allocate
from toolkit.kv.blocks import BlockPool
from toolkit.kv.table import BlockTable
from toolkit.text.tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()
PROMPT = TOKENIZER.encode("Say: ")


def start(pool: BlockPool) -> Sequence:
    matcher = compile_grammar(Grammar("regex", "[abc]{1,12}"), TOKENIZER).matcher()
    return Sequence(PROMPT, BlockTable(pool, 4), matcher)


def picture(sequence: Sequence) -> tuple[list[int], int, list[int], bytes]:
    mask = allocate(1, TOKENIZER.vocab_size)
    assert sequence.matcher is not None
    sequence.matcher.fill(mask, 0)
    return list(sequence.tokens), sequence.table.length, list(sequence.table.blocks), np.asarray(mask).tobytes()


@pytest.mark.parametrize("seed", range(10))
def test_advance_then_rollback_is_the_identity_with_and_without_computed_tokens(seed: int) -> None:
    rng, pool = random.Random(seed), BlockPool(64)
    sequence = start(pool)
    sequence.table.append(len(PROMPT))
    for _ in range(3):
        before, held = picture(sequence), pool.in_use
        tokens = [ord(rng.choice("abc")) for _ in range(rng.randrange(1, 4))]
        sequence.advance(tokens)
        sequence.table.append(rng.randrange(len(tokens) + 1))  # some of them were computed
        sequence.check()
        sequence.rollback(len(tokens))
        assert picture(sequence) == before and pool.in_use == held
        sequence.advance(tokens[:1])
        sequence.table.append(1)


def test_a_fork_never_writes_into_its_parent() -> None:
    pool = BlockPool(64)
    parent = start(pool)
    parent.table.append(len(PROMPT))
    before = picture(parent)
    child = parent.fork()
    child.advance([ord("a"), ord("b")])
    child.table.append(2)
    assert picture(parent) == before and child.generated == [ord("a"), ord("b")]
    child.release()
    assert picture(parent) == before
    parent.release()
    assert pool.in_use == 0


def test_what_the_grammar_refuses_changes_nothing_and_the_prompt_cannot_be_rolled_back() -> None:
    pool = BlockPool(64)
    sequence = start(pool)
    before = picture(sequence)
    with pytest.raises(UsageError):
        sequence.advance([ord("a"), ord("z")])
    assert picture(sequence) == before
    with pytest.raises(SchemaError, match="its own mask"):
        sequence.follow([ord("z")])
    assert picture(sequence) == before
    with pytest.raises(EngineError, match="0 were generated"):
        sequence.rollback(1)
    sequence.table.append(len(PROMPT))
    sequence.tokens.pop()
    with pytest.raises(EngineError, match="cached"):
        sequence.check()
