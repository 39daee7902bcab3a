"""The first file to run: the whole way from a prompt to validated JSON on a tiny random model, in seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import toolkit
from toolkit.contracts import Done, Engine, Request

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "stars": {"type": "integer", "minimum": 1, "maximum": 5}},
    "required": ["city", "stars"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = toolkit.open_engine("embedded", model="tiny")
    yield engine
    assert engine.kv_blocks_in_use == 0  # type: ignore[attr-defined]
    engine.close()


def test_a_beam_search_gives_valid_json_with_alternatives_and_confidences(engine: Engine) -> None:
    result = engine.beam("A hotel: ", schema=SCHEMA, width=4)  # type: ignore[attr-defined]
    assert result.valid and json.loads(result.text) == result.value and set(result.value) == {"city", "stars"}
    assert 1 <= result.value["stars"] <= 5
    assert len(result.alternatives) == 4 and set(result.confidence) == {"/city", "/stars"}


def test_several_records_are_decoded_together_and_each_gets_its_own_answer(engine: Engine) -> None:
    grammar = toolkit.grammar_of(SCHEMA)
    requests = [Request(prompt=f"Hotel {i}: ", id=str(i), beam=toolkit.BeamParams(width=2), grammar=grammar) for i in range(4)]
    done = {event.request_id: event.result for event in engine.generate(requests) if isinstance(event, Done)}
    assert sorted(done) == ["0", "1", "2", "3"]
    assert all(toolkit.Validator(grammar).check(result.text).valid for result in done.values())


def test_the_validator_has_the_last_word(engine: Engine) -> None:
    report = toolkit.Validator(toolkit.grammar_of(SCHEMA)).check('{"city":"Rome","stars":9,"stars":3}')
    assert not report.valid


def test_a_sampled_text_repeats_with_its_seed(engine: Engine) -> None:
    first, second = (engine.complete("x", temperature=1.0, seed=1, max_tokens=8) for _ in range(2))  # type: ignore[attr-defined]
    assert first.token_ids == second.token_ids
