"""Starting over: nothing that was computed is used again, and nobody else loses what is theirs."""

from __future__ import annotations

from tests.engine.test_sequence import PROMPT, TOKENIZER, start
from toolkit.contracts import Grammar
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.sequence import Sequence
from toolkit.grammar.compile import compile_grammar
from toolkit.kv.blocks import BlockPool
from toolkit.kv.prefix import PrefixCache
from toolkit.kv.table import BlockTable


def test_a_restarted_sequence_is_its_prompt_with_nothing_computed() -> None:
    pool = BlockPool(64)
    sequence = start(pool)
    sequence.table.append(len(PROMPT))
    sequence.advance([ord("a"), ord("b")])
    sequence.table.append(4)
    sequence.nodes = 2
    fresh = compile_grammar(Grammar("regex", "[abc]{1,12}"), TOKENIZER).matcher()
    sequence.restart(fresh)
    assert sequence.tokens == PROMPT and sequence.computed == sequence.nodes == 0 and sequence.matcher is fresh
    assert pool.in_use == 0 and sequence.is_wary
    sequence.check()


def test_what_is_trusted_stays_shared_and_the_rest_is_given_back() -> None:
    pool = BlockPool(64)
    one = Sequence(list(range(10)), BlockTable(pool, 4))
    one.table.append(10)
    two = one.fork()
    two.advance([1, 2, 3])
    two.table.append(3)
    two.restart(None, trusted=8)
    assert two.computed == 8 and two.table.blocks == one.table.blocks[:2] and one.table.length == 10
    two.check()
    two.release()
    one.release()
    assert pool.in_use == 0


def test_an_emptied_prefix_cache_holds_nothing_and_finds_nothing() -> None:
    pool = BlockPool(8)
    cache, table = PrefixCache(pool, 4), BlockTable(pool, 4)
    table.append(8)
    cache.insert(list(range(8)), table.blocks)
    found = cache.match(list(range(9)))
    assert len(found) == 2
    cache.clear()
    assert len(cache) == 0 and cache.match(list(range(9))) == []
    assert [pool.holders(block) for block in table.blocks] == [2, 2]  # the table's own and what was handed out
    for block in found:
        pool.release(block)
    table.release()
    assert pool.in_use == 0
    cache.insert([], [])


def test_a_wary_sequence_takes_nothing_out_of_the_cache(tiny: EmbeddedEngine) -> None:
    tiny.complete("the same beginning of a prompt", max_tokens=2, ignore_eos=True)
    forward = tiny._forward
    prompt = tiny.tokenizer.encode("the same beginning of a prompt, and more")
    plain, wary = (Sequence(prompt, forward.table(), None, forward.store.move) for _ in range(2))
    wary.restart(None)
    assert forward.find_prefix(plain) > 0 and forward.find_prefix(wary) == 0
    plain.release()
