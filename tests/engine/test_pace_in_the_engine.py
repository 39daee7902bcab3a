"""Pace inside the real engine: costs are given, so what it does about them is the same everywhere; no time is measured.

Where costs say no, nothing is proposed and nothing is said; where they say yes, it looks far; a batch turns it off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest

from tests.engine.guessers import Scripted
from tests.engine.test_pace import FLAT, MEASURED, STEEP, costs_of
from tests.engine.test_speculative import same
from toolkit.contracts import Completion, Done, Request, SamplingParams
from toolkit.draft.tree import chain
from toolkit.engine.calibrate import calibrate
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.pace import LONGEST, Pace
from toolkit.engine.pass_costs import PassCosts

LENGTH = 60
GREEDY = SamplingParams(max_tokens=LENGTH, ignore_eos=True)


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine("tiny", kv_blocks=1024, block_size=4) as opened:
        yield opened


@pytest.fixture(scope="module")
def line(engine: EmbeddedEngine) -> list[int]:
    """What plain decoding writes, its prompt included: a drafter that knows it is always right."""
    (found,) = decode(engine, None, GREEDY)
    return [*engine.tokenizer.encode("Tell me: "), *found.token_ids]


def decode(engine: EmbeddedEngine, pace: Pace | None, sampling: SamplingParams, source: object = None) -> list[Completion]:
    """The samples of one request, in order."""
    engine._source, engine._pace = source, pace  # type: ignore[assignment]
    request = Request(prompt="Tell me: ", sampling=sampling, trace=True)
    found = {event.index: event.result for event in engine.generate([request]) if isinstance(event, Done)}
    return [found[index] for index in sorted(found)]  # type: ignore[misc]


def right(line: list[int], *, slow: float = 0.0) -> Scripted:
    def guess(text: list[int], budget: object, noise: object) -> object:
        if slow:
            time.sleep(slow)
        return chain(line[len(text) : len(text) + budget.depth])  # type: ignore[attr-defined]

    return Scripted(guess)  # type: ignore[arg-type]


def wrong(line: list[int]) -> Scripted:
    return Scripted(lambda text, budget, noise: chain([(line[len(text)] + 1) % 256] if len(text) < len(line) else [1]))


def lengths(found: Completion) -> list[int]:
    """Tokens drafted, pass by pass."""
    return [len(each.tokens) for each in found.trace]


@pytest.mark.parametrize("table", [STEEP, {1: 1.0, 64: 80.0}], ids=["a row costs a pass", "a row costs more"])
def test_where_costs_say_no_nothing_is_proposed_and_every_pass_is_counted_as_rested(
    engine: EmbeddedEngine, line: list[int], table: Mapping[int, float]
) -> None:
    (plain,) = decode(engine, None, GREEDY)
    source = right(line)
    (found,) = decode(engine, Pace(costs_of(table)), GREEDY, source)
    assert (found.usage.proposed, found.usage.rows, found.usage.passes) == (0, plain.usage.rows, plain.usage.passes)
    assert found.notes == () and same(found, plain)
    assert found.usage.rested >= found.usage.steps - 2  # all but the prompt's, and the last where no room was left
    assert [drafter.text for drafter in source.opened] == [line[: len(source.opened[0].text)]]  # it goes on being told
    assert [drafter.closed for drafter in source.opened] == [1]


def test_where_rows_are_free_and_guesses_right_it_looks_as_far_as_it_can(engine: EmbeddedEngine, line: list[int]) -> None:
    (found,) = decode(engine, Pace(costs_of(FLAT)), GREEDY, right(line))
    assert max(lengths(found)) == LONGEST
    assert found.usage.accepted == found.usage.proposed
    assert found.usage.steps < LENGTH // 4
    assert [*engine.tokenizer.encode("Tell me: "), *found.token_ids] == line


def test_a_drafter_that_is_always_wrong_is_given_up(engine: EmbeddedEngine, line: list[int]) -> None:
    (plain,) = decode(engine, None, GREEDY)
    (found,) = decode(engine, Pace(costs_of(MEASURED)), GREEDY, wrong(line))
    tried = [at for at, k in enumerate(lengths(found)) if k]
    assert found.usage.accepted == 0 and same(found, plain)
    assert 0 < len(tried) < LENGTH // 3
    assert max(lengths(found)[LENGTH // 2 :]) <= 1


@pytest.mark.parametrize(
    ("table", "guess", "most"), [(MEASURED, wrong, 32), (STEEP, right, 0)], ids=["always wrong", "always right, no row is free"]
)
def test_sixteen_lines_together_are_decoded_plainly(
    engine: EmbeddedEngine, line: list[int], table: Mapping[int, float], guess: Callable[[list[int]], Scripted], most: int
) -> None:
    many = replace(GREEDY, n=16)
    plain = decode(engine, None, many)
    found = decode(engine, Pace(costs_of(table)), many, guess(line))
    assert all(same(a, b) for a, b in zip(found, plain, strict=True))
    assert found[-1].usage.proposed <= most  # of all samples together, while what is right is not known yet
    together = [sum(each) for each in zip(*map(lengths, found), strict=False)]
    assert not any(together[3:15])


def test_a_drafter_slower_than_the_passes_it_saves_is_left_alone(engine: EmbeddedEngine, line: list[int]) -> None:
    """Costs are in units of a pass of 1e-6 s: any drafter is slow beside that."""
    pace = Pace(costs_of({1: 1e-6, 64: 1.1e-6}))
    (found,) = decode(engine, pace, GREEDY, right(line, slow=0.002))
    assert pace.drafts.guess_s > 1e-4
    tried = [at for at, k in enumerate(lengths(found)) if k]
    assert tried and tried[0] <= 1 and not set(tried) & set(range(4, 15))


def test_the_rows_of_others_are_counted_and_its_own_drafts_are_not(engine: EmbeddedEngine, line: list[int]) -> None:
    pace = Pace(costs_of(FLAT))
    undrafted: set[int] = set()

    class Costs(PassCosts):
        def learn(
            self, rows: int, seconds: float, *, drafted: int | None = None, listed: int = 0, seen: int = 0
        ) -> None:  # fmt: skip
            super().learn(rows, FLAT[1], drafted=drafted)
            undrafted.add(self.undrafted)
            assert rows <= listed <= seen <= rows * listed  # every line has its rows in its cache

    pace.costs = engine._worker._scheduler._costs = Costs()
    engine._source, engine._pace = right(line), pace  # type: ignore[assignment]
    plain = replace(GREEDY, n=3)
    requests = [Request(prompt="Tell me: ", sampling=GREEDY), Request(prompt="Tell me: ", sampling=plain, speculate=False)]
    list(engine.generate(requests))
    engine._worker._scheduler._costs = None
    assert 4 in undrafted and max(undrafted) == 4


def test_lines_that_have_ended_no_longer_count(engine: EmbeddedEngine, line: list[int]) -> None:
    pace = Pace(costs_of(FLAT))
    decode(engine, pace, replace(GREEDY, n=3, max_tokens=5), right(line))
    assert pace.lines == 0


def test_the_engine_measures_its_own_costs_and_corrects_them_in_use() -> None:
    with EmbeddedEngine("tiny", drafter="ngram") as opened:
        assert opened._pace is not None
        costs = opened._pace.costs
        assert all(costs(rows) > 0 for rows in (1, 2, 16, 64))
        before = dict(costs._seconds)
        list(opened.generate([Request(prompt="x", sampling=GREEDY)]))
        assert costs._seconds != before


def test_a_cache_that_holds_a_long_text_tells_what_attention_takes_and_a_small_one_does_not() -> None:
    for blocks, is_told in ((128, True), (16, False)):
        with EmbeddedEngine("tiny", kv_blocks=blocks) as opened:
            costs = calibrate(opened._forward, batch_rows=64)
            assert opened._forward.pool.in_use == 0 and costs(1) > 0
            assert is_told or (costs._list_s, costs._slot_s) == (0.0, 0.0)
            assert costs._list_s >= 0 and costs._slot_s >= 0
