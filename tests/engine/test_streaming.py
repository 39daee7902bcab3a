"""Streaming: one event a pass with all of its tokens, split or whole the same text, ids and log-probabilities, plain or speculative."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.engine.guessers import Scripted, knowing
from tests.engine.test_speculative import PARAMS, SCHEMA
from toolkit.contracts import Completion, Delta, Done, Event, Grammar, Request, SamplingParams
from toolkit.draft.contract import Budget
from toolkit.draft.tree import EMPTY, DraftTree
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.pace import Pace
from toolkit.engine.pass_costs import PassCosts
from toolkit.results import token_events
from toolkit.text.stream import TextStream

PROMPT = "Tell me: "
MORE = {
    "held back": SamplingParams(max_tokens=24, temperature=1.0, seed=3, stop=("abcdefgh", "\n\n\n", "�")),
    "samples": SamplingParams(max_tokens=20, temperature=1.3, seed=4, n=3, logprobs=1),
}
ALL = {**PARAMS, **MORE}


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine("tiny", format="float32", kv_blocks=256, block_size=4, prefix_cache=False) as opened:
        yield opened


def events_of(engine: EmbeddedEngine, request: Request, source: Any = None) -> list[Event]:
    engine._source, engine._pace = source, Pace(PassCosts(), tokens=5, nodes=8)
    return list(engine.generate([request]))


def sample(events: Iterable[Event], index: int) -> tuple[list[Delta], Completion]:
    events = list(events)
    deltas = [event for event in events if isinstance(event, Delta) and event.index == index]
    (done,) = [event.result for event in events if isinstance(event, Done) and event.index == index]
    assert isinstance(done, Completion)
    return deltas, done


def guesses(engine: EmbeddedEngine, request: Request) -> Scripted:
    """Trees that hold what plain decoding gave for any of the samples, with noise around it."""
    prompt = engine.tokenizer.encode(PROMPT)
    lines = [
        [*prompt, *event.result.token_ids]
        for event in events_of(engine, request)
        if isinstance(event, Done) and isinstance(event.result, Completion)
    ]

    def guess(text: list[int], budget: Budget, noise: random.Random) -> DraftTree:
        line = next((line for line in lines if line[: len(text)] == text), None)
        return EMPTY if line is None else knowing(line, wrong=0.2)(text, budget, noise)

    return Scripted(guess)


@pytest.mark.parametrize("name", list(ALL))
@pytest.mark.parametrize("grammar", [None, SCHEMA], ids=["free", "schema"])
def test_events_hold_the_whole_result_in_order(engine: EmbeddedEngine, name: str, grammar: Grammar | None) -> None:
    request = Request(prompt=PROMPT, id="r", sampling=ALL[name], grammar=grammar)
    for source in (None, guesses(engine, request)):
        events = events_of(engine, request, source)
        for stream in (events, list(token_events(events))):
            for index in range(request.sampling.n):
                deltas, done = sample(stream, index)
                assert "".join(each.text for each in deltas) == done.text
                assert tuple(token for each in deltas for token in each.token_ids) == done.token_ids
                assert tuple(score for each in deltas for score in each.logprobs) == done.logprobs
                for each in deltas:
                    assert len(each.texts) == len(each.token_ids) and "".join(each.texts) == each.text
                counts = [each.usage.output_tokens for each in deltas if each.usage]
                assert counts[-1:] == [len(done.token_ids)][: len(deltas)] and counts == sorted(counts)


@pytest.mark.parametrize("name", list(ALL))
@pytest.mark.parametrize("grammar", [None, SCHEMA], ids=["free", "schema"])
def test_split_events_are_the_same_with_and_without_speculation(
    engine: EmbeddedEngine, name: str, grammar: Grammar | None
) -> None:
    request = Request(prompt=PROMPT, id="r", sampling=ALL[name], grammar=grammar)
    plain, bursts = events_of(engine, request), events_of(engine, request, guesses(engine, request))
    for index in range(request.sampling.n):
        expected, found = (
            [(each.token_ids, each.text, [score.token_id for score in each.logprobs]) for each in deltas]
            for deltas, _ in (sample(token_events(events), index) for events in (plain, bursts))
        )
        assert found == expected
        assert all(len(ids) == 1 for ids, *_ in found)


def test_each_token_has_the_text_that_reading_token_by_token_shows(engine: EmbeddedEngine) -> None:
    request = Request(prompt=PROMPT, id="r", sampling=MORE["held back"])
    deltas, done = sample(token_events(events_of(engine, request, guesses(engine, request))), 0)
    twin = TextStream(engine.tokenizer, request.sampling.stop)
    shown = [twin.feed(token) for token in done.token_ids]
    shown[-1] += twin.flush()
    assert [each.text for each in deltas] == shown
    assert "" in shown


def test_an_accepted_burst_is_one_event(engine: EmbeddedEngine) -> None:
    request = Request(prompt=PROMPT, id="r", sampling=SamplingParams(max_tokens=24, ignore_eos=True), trace=True)
    deltas, done = sample(events_of(engine, request, guesses(engine, request)), 0)
    assert [each.token_ids for each in deltas] == [each.emitted for each in done.trace]
    assert max(len(each.token_ids) for each in deltas) > 2
    assert [each.usage.steps for each in deltas if each.usage] == list(range(1, len(deltas) + 1))


def test_what_was_held_back_when_a_request_is_cancelled_is_not_lost(engine: EmbeddedEngine) -> None:
    sampling = SamplingParams(max_tokens=200, ignore_eos=True, temperature=1.0, seed=2, logprobs=0)
    for grammar in (None, SCHEMA):
        stream: list[Event] = []
        engine._source = None
        for event in engine.generate([Request(prompt=PROMPT, id="gone", sampling=sampling, grammar=grammar)]):
            stream.append(event)
            engine.cancel("gone")
        deltas, done = sample(stream, 0)
        assert done.finish_reason == "cancelled"
        assert "".join(each.text for each in deltas) == done.text
        assert tuple(token for each in deltas for token in each.token_ids) == done.token_ids
