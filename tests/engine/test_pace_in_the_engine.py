"""Pace inside the real engine: costs are given, so what it does about them is the same everywhere; no time is measured.

Where costs say no, nothing is proposed and nothing is said; where they say yes, it looks far; a batch turns it off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest

from tests.engine.guessers import Scripted, ScriptedDrafter
from tests.engine.test_pace import FLAT, MEASURED, STEEP, costs_of
from tests.engine.test_speculative import same
from toolkit.contracts import Completion, Done, Request, SamplingParams
from toolkit.draft.contract import NEVER, Budget
from toolkit.draft.tree import EMPTY, DraftTree, chain
from toolkit.engine.calibrate import calibrate
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.job import Job
from toolkit.engine.pace import LONGEST, Pace
from toolkit.engine.pass_costs import PassCosts
from toolkit.engine.stride import Stride

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


class Reader(ScriptedDrafter):
    """Keeps, for every proposal, what it was allowed and the last place whose hidden row it had been told, with the tokens that it knew."""

    def propose(self, budget: Budget) -> DraftTree:
        self.source.pace.costs.learn(1, 0.02, drafted=0)  # type: ignore[attr-defined] # a pass that took what it always takes
        may_use = budget.nodes > 0 or budget.least < NEVER
        known = [start + len(rows) - 1 for start, rows in self.hidden]
        assert [start for start, _ in self.hidden][1:] == [place + 1 for place in known[:-1]]  # none twice, none left out
        self.source.asked.append((may_use, known[-1] if known else -1, len(self.text)))  # type: ignore[attr-defined]
        if budget.worth is not None and budget.least < NEVER:
            budget.worth([0.01], passes=1)  # nothing that pays: it is to rest, and to be tried again now and then
        return EMPTY


class Readers(Scripted):
    chances = "all"

    def __init__(self, pace: Pace) -> None:
        super().__init__(lambda text, budget, noise: EMPTY, needs_hidden=True)
        self.pace = pace
        self.asked: list[tuple[bool, int, int]] = []

    def open(self, seed: int) -> Reader:
        self.opened.append(Reader(self, seed))
        return self.opened[-1]  # type: ignore[return-value]


@pytest.mark.parametrize("seconds", [1e-4, 4e-4], ids=["asked in every pass", "asked now and then"])
def test_a_drafter_that_rested_has_every_hidden_row_before_it_may_use_one(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    spend = Stride.spend
    monkeypatch.setattr(Stride, "spend", lambda stride, _: spend(stride, seconds))
    pace = Pace(costs_of({1: 0.02, 64: 0.2}))
    source = Readers(pace)
    decode(engine, pace, replace(GREEDY, max_tokens=600), source)
    told = [(place, tokens) for may_use, place, tokens in source.asked if may_use]
    assert len(told) >= 16 and all(place == tokens - 2 for place, tokens in told)
    if seconds > 2e-4:
        assert len(source.asked) < 400
    else:
        assert any(not may_use for may_use, *_ in source.asked)


def test_what_a_pass_gave_is_told_when_all_of_its_requests_have_gone_on(engine: EmbeddedEngine) -> None:
    """A caller that is woken between two of them would take the interpreter from the second."""
    order: list[str] = []

    def watched(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*given: object) -> object:
            order.append(name)
            return call(*given)

        return wrapped

    scheduler = engine._worker._scheduler
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(scheduler), "_answer", watched("on", type(scheduler)._answer))
        patch.setattr(Job, "flush", watched("told", Job.flush))
        engine._source = engine._pace = None
        requests = [Request(prompt="Tell me: ", id=f"{i}", sampling=replace(GREEDY, max_tokens=8)) for i in range(3)]
        assert sum(isinstance(event, Done) for event in engine.generate(requests)) == 3
    assert "ooottt" * 4 in "".join(name[0] for name in order)


def test_passes_with_prompts_count_as_time_too() -> None:
    """Where prompts come all the time, nobody learns from a pass; a drafter that rests is to be asked again all the same."""
    with EmbeddedEngine("tiny", kv_blocks=256, block_size=4, drafter="ngram", prefix_cache=False) as opened:
        before = opened._pace.costs.clock  # type: ignore[union-attr]
        found = opened.complete("Tell me: " * 9, max_tokens=5, ignore_eos=True)
        assert opened._pace.costs.clock - before == found.usage.passes >= 5  # type: ignore[union-attr]


def test_a_drafter_that_opens_slowly_does_not_make_passes_seem_to_take_less_than_nothing(engine: EmbeddedEngine) -> None:
    source, pace = right([]), Pace(costs_of(MEASURED))
    start = source.open

    def slowly(seed: int) -> object:
        time.sleep(0.02)
        return start(seed)

    source.open = slowly  # type: ignore[assignment,method-assign]
    for _ in range(3):
        decode(engine, pace, replace(GREEDY, max_tokens=2), source)
    assert pace.drafts.plain_s > 0.0
