"""Text that a server samples: the same text and events as the embedded engine's greedy ones, for every way of cutting the stream."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from tests.engine.remote.stub_server import Stub, status
from toolkit.contracts import Completion, Delta, Done, Failed, Grammar, Request, Watch
from toolkit.contracts import SamplingParams as Params
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.remote.connection import FailedRequestError
from toolkit.engine.remote.engine import SGLangEngine
from toolkit.engine.remote.relax import constraint, relaxed
from toolkit.engine.remote.samples import Sample
from toolkit.errors import ContextError, NoValidError, SchemaError, UnsupportedError, UsageError
from toolkit.results import token_events


def outcome(done: Completion) -> tuple[object, ...]:
    return done.text, done.token_ids, done.finish_reason, done.matched_stop


@pytest.mark.parametrize("cut", [1, 3, 1000])
@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize(
    "params",
    [
        Params(max_tokens=24),
        Params(max_tokens=24, logprobs=3, logprob_ids=(5, 260)),
        Params(max_tokens=40, stop_ids=(97, 98, 99, 100, 101, 102)),
        Params(max_tokens=40, ignore_eos=True),
    ],
)
def test_greedy_text_is_that_of_the_embedded_engine(
    tiny: EmbeddedEngine, stub: Stub, engine: SGLangEngine, cut: int, incremental: bool, params: Params
) -> None:
    stub.cut, stub.incremental = cut, incremental
    request = Request(prompt="Once upon a time", id="r", sampling=params)
    here, there = (list(each.generate([request])) for each in (tiny, engine))
    assert isinstance(here[-1], Done) and isinstance(there[-1], Done)
    mine, its = here[-1].result, there[-1].result
    assert isinstance(mine, Completion) and isinstance(its, Completion)
    assert outcome(its) == outcome(mine)
    deltas = [event for event in there if isinstance(event, Delta)]
    assert "".join(delta.text for delta in deltas) == its.text
    assert [i for delta in deltas for i in delta.token_ids] == list(its.token_ids)
    assert all("".join(delta.texts) == delta.text and len(delta.texts) == len(delta.token_ids) for delta in deltas)
    assert [d.usage.output_tokens for d in deltas if d.usage] == list(itertools.accumulate(len(d.token_ids) for d in deltas))
    split = [event for event in token_events(there) if isinstance(event, Delta)]
    assert [(d.text, d.token_ids) for d in split] == [(d.text, d.token_ids) for d in token_events(here) if isinstance(d, Delta)]
    for mine_one, its_one in zip(mine.logprobs, its.logprobs, strict=True):
        assert its_one.token_id == mine_one.token_id
        assert its_one.logprob == pytest.approx(mine_one.logprob, abs=1e-4)
        assert dict(its_one.asked) == pytest.approx(dict(mine_one.asked), abs=1e-4)
        assert [i for i, _ in its_one.top] == [i for i, _ in mine_one.top]


def test_a_watched_text_is_judged_here_whatever_the_server_says(engine: SGLangEngine) -> None:
    request = Request(prompt="Once upon a time", sampling=Params(max_tokens=12), watch=Watch(kind="json"))
    (done,) = [event.result for event in engine.generate([request]) if isinstance(event, Done)]
    assert isinstance(done, Completion)
    assert done.valid is False and done.violations
    (unwatched,) = [
        e.result
        for e in engine.generate([Request(prompt="Once upon a time", sampling=Params(max_tokens=12))])
        if isinstance(e, Done)
    ]
    assert isinstance(unwatched, Completion) and unwatched.valid is None


@pytest.mark.parametrize("cut", [1, 4, 1000])
def test_a_stop_string_ends_the_text_wherever_the_stream_is_cut(
    tiny: EmbeddedEngine, stub: Stub, engine: SGLangEngine, cut: int
) -> None:
    stub.cut = cut
    text = tiny.complete("Once upon a time", max_tokens=40).text
    stop = text[10:13]
    mine, its = (each.complete("Once upon a time", max_tokens=40, stop=(stop, "never")) for each in (tiny, engine))
    assert outcome(its) == outcome(mine)
    assert its.matched_stop == stop


def test_ids_that_a_busy_server_has_not_counted_yet_are_taken_once_they_are(
    tiny: EmbeddedEngine, stub: Stub, engine: SGLangEngine
) -> None:
    stub.late = 1
    mine, its = (each.complete("Once upon a time", max_tokens=20, ignore_eos=True) for each in (tiny, engine))
    assert its.token_ids == mine.token_ids and len(its.token_ids) == 20
    bursts = [
        event.token_ids
        for event in engine.generate([Request(prompt="Once", sampling=Params(max_tokens=5, ignore_eos=True))])
        if isinstance(event, Delta)
    ]
    assert sum(map(len, bursts)) == 5


@pytest.mark.parametrize(
    ("given", "total", "reason"),
    [
        ([1, 2, 4], 2, {"type": "length"}),  # a text that has ended counts all of it
        ([1, 2, 3, 4, 5, 6], 2, None),  # more than was asked for
        ([2, 2, 3], 2, None),  # another beginning
        ([1, 2], 0, None),  # fewer than there were
    ],
)
def test_ids_that_contradict_their_count_are_an_error(
    tiny: EmbeddedEngine, given: list[int], total: int, reason: object
) -> None:
    job = SimpleNamespace(tokenizer=tiny.tokenizer, max_tokens=5)
    sample = Sample(job, 0, None, ids=[1])  # type: ignore[arg-type]
    with pytest.raises(FailedRequestError, match="after 1"):
        sample._new_ids({"output_ids": given, "meta_info": {"completion_tokens": total, "finish_reason": reason}})


def test_several_samples_come_in_one_stream_over_a_prompt_computed_once(stub: Stub, engine: SGLangEngine) -> None:
    events = list(engine.generate([Request(prompt="Once", id="r", sampling=Params(n=3, max_tokens=5))]))
    assert sorted(event.index for event in events if isinstance(event, Done)) == [0, 1, 2]
    streams = [body for body in stub.bodies if body.get("stream")]
    assert [len(body["input_ids"]) for body in streams] == [3]
    assert stub.bodies[0]["sampling_params"]["max_new_tokens"] == 0


def test_seeds_of_samples_differ_and_are_sent_to_a_server_that_keeps_them(stub: Stub) -> None:
    stub.info["enable_deterministic_inference"] = True
    with SGLangEngine(stub.url, tokenizer=stub.tokenizer) as engine:
        params = Params(n=3, max_tokens=2, temperature=1.0, seed=7)
        done = [event.result for event in engine.generate([Request(prompt="x", sampling=params)]) if isinstance(event, Done)]
    sent = [one["sampling_seed"] for one in stub.bodies[-1]["sampling_params"]]
    assert len(set(sent)) == 3
    assert {one.seed for one in done if isinstance(one, Completion)} == {7}


@pytest.mark.parametrize(
    ("told", "found"),
    [([2, 1, 0, 3], (4, 3, 3)), ([5], ()), ([], ()), (None, None), ([1, -1], None), ([1, True], None), ([0] * 1025, None)],
)
def test_drafts_accepted_by_position_come_out_of_the_histogram_of_passes(told: object, found: tuple[int, ...] | None) -> None:
    sample = Sample(None, 0, None, meta={"spec_correct_drafts_histogram": told})  # type: ignore[arg-type]
    assert sample.accepted_by_position == found


def test_a_cpu_server_that_speculates_is_asked_to_draw_exactly_where_it_is_seen_to(stub: Stub) -> None:
    stub.info["speculative_algorithm"] = "NGRAM"
    found = []
    for stub.draws in (False, True):
        with SGLangEngine(stub.url, tokenizer=stub.tokenizer) as engine:
            found.append(engine.facts.draws)
            *_, last = engine.generate([Request(prompt="x", sampling=Params(temperature=1.0, max_tokens=2))])
            assert isinstance(last, Done) == stub.draws
    assert found == [False, True]


@pytest.mark.parametrize(
    ("params", "info"),
    [
        (Params(repetition_penalty=1.1), {}),
        (Params(presence_penalty=2.5), {}),
        (Params(frequency_penalty=-3.0), {}),
        (Params(stop=tuple(map(str, range(33)))), {}),
        (Params(ignore_eos=True, stop_ids=(3,)), {}),
        (Params(temperature=1.0, seed=1), {}),
        (Params(temperature=1.0, top_k=5, top_p=0.9, min_p=0.1), {"sampling_backend": "flashinfer"}),
        (Params(presence_penalty=0.5), {"speculative_algorithm": "NGRAM"}),
        (Params(min_tokens=2), {"speculative_algorithm": "NGRAM"}),
        (Params(temperature=1.0), {"speculative_algorithm": "NGRAM"}),
        (Params(temperature=1.0, min_p=0.2), {"speculative_algorithm": "EAGLE", "device": "cuda"}),
        (
            Params(temperature=1.0),
            {"speculative_algorithm": "EAGLE", "device": "cuda", "speculative_accept_threshold_acc": 0.9},
        ),
        (Params(), {"watermark_enforce_all": True}),
    ],
)
def test_what_a_server_means_otherwise_is_refused_by_name_and_not_sent(
    stub: Stub, params: Params, info: dict[str, object]
) -> None:
    stub.info.update(info)
    with SGLangEngine(stub.url, tokenizer=stub.tokenizer) as engine:
        stub.bodies.clear()
        (event,) = engine.generate([Request(prompt="x", sampling=params)])
    assert isinstance(event, Failed) and isinstance(event.error, UnsupportedError)
    assert stub.url in event.error.message
    assert stub.bodies == []


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (Request(prompt=[5, 261]), UsageError),
        (Request(prompt=[-1]), UsageError),
        (Request(prompt=""), UsageError),
        (Request(prompt="x", sampling=Params(logit_bias={300: 1.0})), UsageError),
        (Request(prompt="x", sampling=Params(logprob_ids=(261,))), UsageError),
        (Request(prompt="x", sampling=Params(stop_ids=(9999,))), UsageError),
        (Request(prompt="x", sampling=Params(logprobs=262)), UsageError),
        (Request(prompt="x" * 501), ContextError),
        (Request(prompt="x", trace=True), UnsupportedError),
        (Request(prompt="x", grammar=Grammar("lark", 'start: "a"')), UnsupportedError),
        (Request(prompt="x", grammar=Grammar("regex", "a+"), sampling=Params(min_tokens=3)), UnsupportedError),
    ],
)
def test_what_would_kill_or_confuse_a_server_never_reaches_it(
    stub: Stub, engine: SGLangEngine, request_: Request, error: type[Exception]
) -> None:
    (event,) = engine.generate([request_])
    assert isinstance(event, Failed) and isinstance(event.error, error)
    assert stub.bodies == []
    with pytest.raises(UsageError):
        engine.score("x", [[261]])


def test_a_grammar_goes_to_the_server_and_the_validator_has_the_last_word(stub: Stub, engine: SGLangEngine) -> None:
    params = Params(max_tokens=400, stop_ids=tuple(range(128)))  # the stub heeds no grammar: it ends at the first letter
    *_, last = engine.generate([Request(prompt="x", grammar=Grammar("regex", "[0-9]{3}"), sampling=params)])
    assert stub.bodies[-1]["sampling_params"]["regex"] == "[0-9]{3}"
    assert isinstance(last, Failed) and isinstance(last.error, NoValidError)


def test_keywords_that_the_backend_refuses_are_dropped_for_it_kept_for_the_validator_and_reported(
    stub: Stub, engine: SGLangEngine
) -> None:
    grammar = Grammar("json_schema", '{"type":"array","items":{"type":"integer","multipleOf":3},"uniqueItems":true}')
    said = (
        "Failed to compile json grammar: JSON Schema at #/items is not supported by xgrammar: keyword(s) type would be ignored"
    )
    stub.faults.append(status(400, {"error": {"message": said}}))
    events = list(engine.generate([Request(prompt="x", grammar=grammar, sampling=Params(max_tokens=3))]))
    sent = [body["sampling_params"]["json_schema"] for body in stub.bodies]
    assert sent == ['{"type": "array", "items": {"type": "integer"}}', '{"type": "array", "items": {}}']
    assert isinstance(events[-1], Done) and isinstance(events[-1].result, Completion)  # cut off at max_tokens: not judged
    assert events[-1].result.partial == ("uniqueItems at the root", "multipleOf at /items", "type at /items")


def test_a_schema_that_no_dropping_helps_is_the_servers_word(stub: Stub, engine: SGLangEngine) -> None:
    stub.faults.append(status(400, {"error": {"message": "Failed to compile json grammar: too deep"}}))
    (event,) = engine.generate([Request(prompt="x", grammar=Grammar("json_schema", '{"type":"object"}'))])
    assert isinstance(event, Failed) and isinstance(event.error, SchemaError)
    assert "too deep" in event.error.message


def test_what_leans_on_a_dropped_keyword_goes_with_it() -> None:
    asked = constraint(
        Grammar("json_schema", '{"patternProperties":{"^a":{}},"additionalProperties":false,"minProperties":1}'), "outlines"
    )
    said = "JSON Schema at # is not supported by outlines: keyword(s) patternProperties would be ignored or weakened"
    assert relaxed(asked, said).text == '{"minProperties": 1}'
    assert relaxed(asked, said).lost == ("patternProperties at the root", "additionalProperties at the root")


def test_of_constraints_on_one_string_the_pattern_is_kept() -> None:
    found = constraint(Grammar("json_schema", '{"type":"string","pattern":"^a","maxLength":3,"format":"date"}'), "xgrammar")
    assert found.text == '{"type": "string", "pattern": "^a"}'
    assert found.lost == ("maxLength at the root", "format at the root")
    whole = constraint(Grammar("json_schema", '{"not":{"multipleOf":3},"enum":[1]}'), "xgrammar")
    assert (whole.text, whole.lost) == ('{"enum": [1]}', ("not at the root",))


def test_choices_are_escaped_into_one_regex() -> None:
    assert constraint(Grammar("choices", '["a.b", "(c)"]'), "xgrammar").text == r"(a\.b)|(\(c\))"


def test_a_text_that_is_cancelled_ends_with_what_there_is(engine: SGLangEngine) -> None:
    events = engine.generate([Request(prompt="Once", id="long", sampling=Params(max_tokens=400, ignore_eos=True))])
    assert isinstance(next(events), Delta)
    engine.cancel("long")
    *_, last = events
    assert isinstance(last, Done) and isinstance(last.result, Completion)
    assert last.result.finish_reason == "cancelled"
    assert 0 < len(last.result.token_ids) < 400
