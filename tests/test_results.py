"""Results: one request's events to its result, and a result to JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from toolkit.contracts import (
    BeamResult,
    Completion,
    Delta,
    Done,
    Event,
    Failed,
    FieldConfidence,
    Hypothesis,
    TokenLogprob,
    Usage,
    Violation,
)
from toolkit.errors import EngineError, UsageError
from toolkit.results import answered, beam_result, json_text, only_result, result_fields, token_events
from toolkit.schema import parse_json

TEXT = Completion(text="a", token_ids=(1,), finish_reason="stop")
BEAM = BeamResult(
    value={"n": 1},
    text='{"n":1}',
    valid=True,
    score=-0.5,
    sum_logprob=-1.0,
    alternatives=(
        Hypothesis(text="1", token_ids=(1,), token_logprobs=(-0.5,), score=-0.5, sum_logprob=-math.inf, value=1),
        Hypothesis(
            text="x", token_ids=(2,), token_logprobs=(-9.0,), score=-math.inf, sum_logprob=-9.0, valid=False,
            violations=(Violation("", "json", "one JSON value", "x", "no JSON"),),
        ),
    ),
    confidence={"/n": FieldConfidence(0.5, 0.25, 2, margin=math.inf)},
)  # fmt: skip
READERS = [lambda events: list(answered(events)), only_result, beam_result]


@pytest.mark.parametrize("read", READERS)
def test_a_failure_is_raised_and_no_result_is_an_error(read: Callable[[Iterable[Event]], Any]) -> None:
    with pytest.raises(UsageError, match="bad"):
        read([Delta("r", 0, "a"), Failed("r", UsageError("bad"))])
    with pytest.raises(EngineError, match="without a result"):
        read([Delta("r", 0, "a")])


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("last", [Done("r", 0, BEAM), Failed("r", UsageError("bad")), Delta("r", 0, "a")])
def test_the_engines_generator_is_closed_by_any_way_out(read: Callable[[Iterable[Event]], Any], last: Event) -> None:
    left: list[str] = []

    def events() -> Iterator[Event]:
        try:
            yield last
        finally:
            left.append("closed")

    kept = events()  # as a traceback keeps it
    try:
        read(kept)
    except (UsageError, EngineError) as error:
        assert left == ["closed"], error
    assert left == ["closed"]


def test_a_result_of_another_kind_is_an_engine_error() -> None:
    assert only_result([Done("r", 0, TEXT)]) is TEXT
    assert beam_result([Done("r", 0, BEAM)]) is BEAM
    with pytest.raises(EngineError, match="a Completion for a beam search"):
        beam_result([Done("r", 0, TEXT)])


def test_events_pass_as_they_come() -> None:
    events = [Delta("r", 0, "a"), Done("r", 0, TEXT), Done("r", 1, TEXT)]
    assert list(answered(iter(events))) == events


def test_a_burst_becomes_one_event_a_token_with_its_own_share_of_everything() -> None:
    scores = (TokenLogprob(1, -0.1), TokenLogprob(2, -0.2), TokenLogprob(3, -0.3))
    books = Usage(output_tokens=10, passes=4)
    burst = Delta("r", 1, "ab", (1, 2, 3), texts=("a", "", "b"), logprobs=scores, usage=books)
    one, two, three = token_events([burst])
    assert one == Delta("r", 1, "a", (1,), texts=("a",), logprobs=scores[:1], usage=replace(books, output_tokens=8))
    assert two == Delta("r", 1, "", (2,), texts=("",), logprobs=scores[1:2], usage=replace(books, output_tokens=9))
    assert three == Delta("r", 1, "b", (3,), texts=("b",), logprobs=scores[2:], usage=books)


def test_without_each_token_s_text_the_last_one_of_a_burst_has_it_all() -> None:
    found = list(token_events([Delta("r", 0, "ab", (1, 2)), Delta("r", 0, "c"), Done("r", 0, TEXT)]))
    assert found == [Delta("r", 0, "", (1,)), Delta("r", 0, "ab", (2,)), Delta("r", 0, "c"), Done("r", 0, TEXT)]


def test_a_reader_that_stops_early_closes_the_events_of_the_engine() -> None:
    left: list[str] = []

    def events() -> Iterator[Event]:
        try:
            yield Delta("r", 0, "ab", (1, 2))
        finally:
            left.append("closed")

    kept = events()
    split = token_events(kept)
    next(split)
    split.close()  # type: ignore[attr-defined]
    assert left == ["closed"]


def test_fields_are_plain_json_and_infinite_numbers_are_none() -> None:
    fields = parse_json(json_text(result_fields(BEAM)))
    assert fields["value"] == {"n": 1} and fields["score"] == -0.5 and fields["confidence"] == {"/n": 0.5}
    assert fields["confidence_detail"] == {"/n": {"product": 0.5, "minimum": 0.25, "tokens": 2, "margin": None}}
    best, worst = fields["alternatives"]
    assert (best["sum_logprob"], worst["score"]) == (None, None)
    assert worst["violations"][0]["keyword"] == "json"


@pytest.mark.parametrize("text", ["\ud800", "a\udcffb", "\udc80\ud800", "\u2028", "\x00", "\U0001f600", "\ud83d\ude00"])
def test_any_text_becomes_json_that_the_strict_reader_reads(text: str) -> None:
    written = json_text({text: [text]})
    assert "\n" not in written
    (key, (value,)) = next(iter(parse_json(written.encode()).items()))
    assert key == value and len(value) == len(text)
    assert json.loads(written) == {key: [value]}


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_does_not_have_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        json_text([number])
