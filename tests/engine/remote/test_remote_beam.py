"""Beam search over HTTP against the embedded engine: the same loop over the same numbers must find the same n-best."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tests.engine.remote.stub_server import Stub
from toolkit.contracts import BeamParams as Params
from toolkit.contracts import BeamResult, Done, Event, Grammar, Request
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.remote import rows
from toolkit.engine.remote.engine import SGLangEngine
from toolkit.errors import NoValidError

RECORD = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["alpha", "alphabet", "beta"]},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "tag": {"type": "string", "maxLength": 3},
    },
    "required": ["kind", "n"],
    "additionalProperties": False,
}
SCHEMA = Grammar("json_schema", json.dumps(RECORD))
LETTERS = Grammar("regex", "[abc]{1,4}")
WORDS = Grammar("regex", "[a-z ]{1,6}")
CASES = [
    ("Say: ", SCHEMA, Params(width=4, max_tokens=60)),
    ("Say: ", SCHEMA, Params(width=4, alpha=0.0, max_tokens=60)),
    ("x", LETTERS, Params(width=1, max_tokens=12)),
    ("a longer prompt with some words in it", LETTERS, Params(width=3, max_tokens=3)),
    ("y", WORDS, Params(width=6, groups=3, diversity=0.7, max_tokens=12)),
    ("open", None, Params(width=3, max_tokens=6)),
]


def outcome(result: BeamResult) -> list[tuple[str, tuple[int, ...], float, float]]:
    return [(one.text, one.token_ids, round(one.score, 3), round(one.sum_logprob, 3)) for one in result.alternatives]


def both(engine: EmbeddedEngine | SGLangEngine, request: Request) -> BeamResult | type[Exception]:
    (event,) = [event for event in engine.generate([request]) if isinstance(event, Event.__args__[1:])]  # type: ignore[attr-defined]
    return event.result if isinstance(event, Done) else type(event.error)


@pytest.mark.parametrize(("prompt", "grammar", "params"), CASES)
@pytest.mark.parametrize("listed", [512, 0], ids=["all allowed ids named", "only the likeliest reported"])
def test_the_n_best_is_that_of_the_embedded_engine(
    tiny: EmbeddedEngine, engine: SGLangEngine, monkeypatch: pytest.MonkeyPatch, prompt: str, grammar: Grammar | None, params: Params,
    listed: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(rows, "LISTED", listed)
    monkeypatch.setattr(rows, "TOP", 16)
    request = Request(prompt=prompt, grammar=grammar, beam=params)
    here, there = both(tiny, request), both(engine, request)
    if not isinstance(here, BeamResult):
        assert there == here
        return
    assert isinstance(there, BeamResult)
    assert outcome(there) == outcome(here)
    assert (there.usage.forced_tokens, there.usage.passes) == (here.usage.forced_tokens, here.usage.passes)


def test_named_ids_give_the_very_confidences_of_the_embedded_engine(tiny: EmbeddedEngine, engine: SGLangEngine) -> None:
    here, there = (each.beam("Say: ", schema=RECORD, width=4) for each in (tiny, engine))
    assert {path: (pytest.approx(one.product, abs=1e-4), one.tokens) for path, one in here.confidence.items()} == {
        path: (one.product, one.tokens) for path, one in there.confidence.items()
    }


def test_a_confidence_out_of_the_likeliest_ids_is_right_up_to_the_mass_not_reported(
    tiny: EmbeddedEngine, engine: SGLangEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "LISTED", 0)
    monkeypatch.setattr(rows, "TOP", 200)
    here, there = (each.beam("y", grammar=WORDS, width=4, max_tokens=9) for each in (tiny, engine))
    assert here.confidence[""].tokens == there.confidence[""].tokens
    assert there.confidence[""].product == pytest.approx(here.confidence[""].product, rel=0.2)


def test_a_step_is_one_request_and_sends_what_the_server_has_in_its_cache(stub: Stub, engine: SGLangEngine) -> None:
    usage = engine.beam("Say something long, please: ", schema=RECORD, width=4).usage
    assert usage.requests == usage.passes == len(stub.searches())
    assert usage.tokens_sent == sum(len(line) for body in stub.searches() for line in body["input_ids"])
    first = usage.input_tokens - usage.cached_tokens
    assert 1 - (usage.rows - first) / (usage.tokens_sent - usage.input_tokens) > 0.9
    assert max(len(body["input_ids"]) for body in stub.searches()) == 4


def test_lines_asked_about_alone_give_what_they_give_together(stub: Stub, engine: SGLangEngine) -> None:
    stub.info["router_manager"] = True
    with SGLangEngine(stub.url, tokenizer=stub.tokenizer) as alone:
        for grammar, width in ((SCHEMA, 4), (LETTERS, 3), (None, 2)):
            mine, its = (each.beam("Say: ", grammar=grammar, width=width, max_tokens=40) for each in (engine, alone))
            assert outcome(its) == outcome(mine)
            assert its.usage.requests > mine.usage.requests and its.usage.tokens_sent == mine.usage.tokens_sent


def test_a_step_is_cut_into_requests_that_fit_into_the_queue_of_the_server(stub: Stub, engine: SGLangEngine) -> None:
    """A batch that is larger than the queue is refused however often it is sent."""
    beginning = "The same instructions and examples for every record. " * 2
    requests = [Request(prompt=f"{beginning}{i}: ", id=str(i), grammar=LETTERS, beam=Params(width=3)) for i in range(4)]
    whole = {event.request_id: event.result for event in engine.generate(requests) if isinstance(event, Done)}
    lines = [[97, 98 + i] for i in range(8)]
    scores = engine.score("x", lines)
    stub.info["max_queued_requests"] = 2
    stub.bodies.clear()
    with SGLangEngine(stub.url, tokenizer=stub.tokenizer) as narrow:
        cut = {event.request_id: event.result for event in narrow.generate(requests) if isinstance(event, Done)}
        assert np.allclose(narrow.score("x", lines), scores, atol=1e-5)
    batches = [body["input_ids"] for body in stub.bodies if "input_ids" in body and not isinstance(body["input_ids"][0], int)]
    assert max(map(len, batches)) == 2
    assert cut.keys() == whole.keys()
    for name, one in cut.items():
        assert isinstance(one, BeamResult) and outcome(one) == outcome(whole[name])  # type: ignore[arg-type]


def test_forced_tokens_are_scored_by_the_request_of_their_step(stub: Stub, engine: SGLangEngine) -> None:
    usage = engine.beam("Say: ", schema=RECORD, width=2).usage
    assert usage.forced_tokens > 0
    asked = [
        len(ids) - 1 - start
        for body in stub.searches()
        for ids, start in zip(body["input_ids"], body["logprob_start_len"], strict=True)
        if start >= 0
    ]
    assert sum(asked) == usage.forced_tokens


def test_a_beam_lives_where_no_allowed_id_is_among_the_likeliest(
    tiny: EmbeddedEngine, stub: Stub, engine: SGLangEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "LISTED", 0)
    monkeypatch.setattr(rows, "TOP", 1)
    narrow = Grammar("regex", "[q#~]{2}")
    here, there = (each.beam("abc", grammar=narrow, width=1) for each in (tiny, engine))
    assert outcome(there) == outcome(here)
    assert there.usage.requests > there.usage.passes  # lines were asked about again, by name


def test_records_in_flight_share_the_requests_and_compute_their_beginning_once(stub: Stub, engine: SGLangEngine) -> None:
    beginning = "The same instructions and examples for every record. " * 2
    requests = [Request(prompt=f"{beginning}{i}: ", id=str(i), grammar=LETTERS, beam=Params(width=3)) for i in range(4)]
    done = {event.request_id: event.result for event in engine.generate(requests) if isinstance(event, Done)}
    assert len(done) == 4
    alone = sum(one.usage.passes for one in done.values())
    assert len(stub.searches()) < alone / 2
    warmed = [body for body in stub.bodies if body["sampling_params"]["max_new_tokens"] == 0]
    assert len(warmed) <= 1  # where all came in one round
    computed = sum(one.usage.rows for one in done.values())
    assert computed < 2 * len(beginning) + 4 * 40


def test_records_together_find_what_each_finds_alone(engine: SGLangEngine) -> None:
    requests = [Request(prompt=f"Say {i}: ", id=str(i), grammar=SCHEMA, beam=Params(width=3)) for i in range(5)]
    together = {event.request_id: event.result for event in engine.generate(requests) if isinstance(event, Done)}
    for request in requests:
        alone = engine.beam(request.prompt, grammar=SCHEMA, width=3)
        assert outcome(together[request.id]) == outcome(alone)


def test_what_is_refused_by_the_validator_is_an_error_with_the_reasons(engine: SGLangEngine) -> None:
    with pytest.raises(NoValidError, match="truncated"):
        engine.beam("Say: ", schema=RECORD, width=2, max_tokens=3)


def test_every_parameter_is_named_so_that_preferred_ones_of_a_server_change_nothing(stub: Stub, engine: SGLangEngine) -> None:
    engine.beam("x", grammar=LETTERS, width=2)
    params = stub.searches()[0]["sampling_params"]
    assert params["temperature"] == 0.0
    assert (params["repetition_penalty"], params["frequency_penalty"], params["presence_penalty"]) == (1.0, 0.0, 0.0)


def test_scores_that_something_in_the_server_has_changed_are_told_with_the_result(stub: Stub) -> None:
    stub.offset = -0.7
    with SGLangEngine(stub.url, tokenizer=stub.tokenizer) as engine:
        assert any("not the model's own" in note for note in engine.notes)
        assert any("not the model's own" in note for note in engine.beam("x", grammar=LETTERS, width=2).notes)


def test_scores_of_continuations_are_those_of_the_embedded_engine(tiny: EmbeddedEngine, engine: SGLangEngine) -> None:
    lines = [tiny.tokenizer.encode(text) for text in ("abc", "", "d", "efgh")]
    here, there = (each.score("Some prompt", lines) for each in (tiny, engine))
    assert [[pytest.approx(value, abs=1e-4) for value in line] for line in here] == there


def test_a_row_of_a_forced_token_is_a_distribution_that_holds_its_log_probability() -> None:
    asked = rows.Question((1, 2, 3), 2, 0, (0, 4), None)
    made = rows.rows(asked, rows.Answer((math.log(0.3), math.log(1.0)), {0: math.log(0.5), 4: math.log(0.25)}), 8)
    assert made.shape == (3, 8)
    assert made.exp().sum(-1).tolist() == pytest.approx([1.0, 1.0, 1.0], abs=1e-5)
    assert made[0, 2].exp().item() == pytest.approx(0.3)
    assert made[1, 3].item() == 0.0
    assert made[2].exp().tolist() == pytest.approx([0.5, *[0.25 / 6] * 3, 0.25, *[0.25 / 6] * 3], abs=1e-6)


def test_impossible_tokens_have_finite_scores() -> None:
    made = rows.rows(rows.Question((1,), 0, 0, (0,), None), rows.Answer((), {0: -math.inf}), 4)
    assert bool(made.isfinite().all())
