"""Greedy and sampled decoding on the tiny model: against recomputation, alone and together, and every way a text can end."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from copy import deepcopy

import pydantic
import pytest
import torch

from tests.engine.twins import greedy, logits_after
from toolkit.contracts import BeamParams, Completion, Delta, Done, Failed, Grammar, Request, SamplingParams
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.engine import open_engine
from toolkit.errors import CancelledError, ContextError, EngineError, ToolkitError, UnsupportedError, UsageError

SCHEMA = Grammar(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 6}},
            "required": ["name"],
            "additionalProperties": False,
        }
    ),
)
PROMPTS = ("Hello", "b", "the same beginning and then one end", "the same beginning and then another", "ünïcode 🙂 text")


def run(engine: EmbeddedEngine, requests: list[Request]) -> dict[tuple[str, int], Completion]:
    done = {}
    for event in engine.generate(requests):
        assert not isinstance(event, Failed), event
        if isinstance(event, Done):
            assert isinstance(event.result, Completion)
            done[event.request_id, event.index] = event.result
    return done


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("grammar", [None, SCHEMA], ids=["free", "record"])
def test_greedy_equals_recomputation_without_cache_or_forced_runs(
    tiny: EmbeddedEngine, prompt: str, grammar: Grammar | None
) -> None:
    expected = greedy(tiny._forward.decoder, tiny.tokenizer, tiny.tokenizer.encode(prompt), 24, grammar)
    assert list(tiny.complete(prompt, grammar=grammar, max_tokens=24).token_ids) == expected


def test_requests_give_the_same_tokens_alone_and_together(tiny: EmbeddedEngine) -> None:
    requests = [
        Request(
            prompt=prompt,
            id=f"{i}-{t}",
            grammar=grammar,
            sampling=SamplingParams(temperature=t, seed=i, max_tokens=20, top_p=0.9),
        )
        for i, prompt in enumerate(PROMPTS)
        for t, grammar in ((0.0, None), (1.0, None), (0.8, SCHEMA))
    ]
    together = run(tiny, requests)
    for request in requests:
        alone = run(tiny, [request])[request.id, 0]
        assert alone.token_ids == together[request.id, 0].token_ids and alone.text == together[request.id, 0].text


def test_a_seed_repeats_a_text_and_samples_of_one_request_differ(tiny: EmbeddedEngine) -> None:
    params = SamplingParams(temperature=1.2, seed=5, n=4, max_tokens=16)
    first, second = (run(tiny, [Request(prompt="Hello", id="r", sampling=params)]) for _ in range(2))
    assert {k: v.token_ids for k, v in first.items()} == {k: v.token_ids for k, v in second.items()}
    assert len({completion.token_ids for completion in first.values()}) == 4
    unseeded = tiny.complete("Hello", temperature=1.2, max_tokens=16)
    assert unseeded.seed is not None
    assert tiny.complete("Hello", temperature=1.2, max_tokens=16, seed=unseeded.seed).token_ids == unseeded.token_ids


def test_threads_are_decoded_together_and_get_their_own_results(tiny: EmbeddedEngine) -> None:
    expected = {prompt: tiny.complete(prompt, max_tokens=30).token_ids for prompt in PROMPTS}
    found: dict[str, tuple[int, ...]] = {}
    threads = [
        threading.Thread(target=lambda p=p: found.update({p: tiny.complete(p, max_tokens=30).token_ids})) for p in PROMPTS
    ]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_deltas_concatenate_to_the_text_and_ids_and_never_split_a_character(tiny: EmbeddedEngine) -> None:
    for stop in ((), ("�",)):
        deltas: dict[int, str] = {}
        ids: dict[int, tuple[int, ...]] = {}
        params = SamplingParams(temperature=1.5, seed=3, n=3, max_tokens=40, stop=stop)
        for event in tiny.generate([Request(prompt="Hello", id="r", sampling=params)]):
            if isinstance(event, Delta):
                deltas[event.index] = deltas.get(event.index, "") + event.text
                ids[event.index] = ids.get(event.index, ()) + event.token_ids
            elif isinstance(event, Done):
                assert isinstance(event.result, Completion)
                assert deltas.get(event.index, "") == event.result.text
                assert event.result.token_ids[: len(ids.get(event.index, ()))] == ids.get(event.index, ())


def test_logprobs_are_those_of_the_unmasked_model_also_for_forced_tokens(tiny: EmbeddedEngine) -> None:
    prompt = tiny.tokenizer.encode("Hello")
    for grammar in (None, SCHEMA):
        done = tiny.complete(prompt, grammar=grammar, max_tokens=30, logprobs=3, logprob_ids=(65, 66))
        table = torch.log_softmax(
            logits_after(tiny._forward.decoder, prompt + list(done.token_ids))[:, : tiny.tokenizer.vocab_size], -1
        )
        scored = done.logprobs
        assert [each.token_id for each in scored] == list(done.token_ids)[: len(scored)] and scored
        for i, each in enumerate(scored):
            row = table[len(prompt) + i - 1]
            assert each.logprob == pytest.approx(float(row[each.token_id]), abs=1e-4)
            assert [value for _, value in each.top] == pytest.approx(row.topk(3).values.tolist(), abs=1e-4)
            assert dict(each.asked) == pytest.approx({65: float(row[65]), 66: float(row[66])}, abs=1e-4)


def test_every_generated_token_has_its_logprob_even_at_the_end_of_a_forced_run(tiny: EmbeddedEngine) -> None:
    done = tiny.complete("Hello", grammar=SCHEMA, max_tokens=60, logprobs=0)
    assert done.finish_reason == "grammar" and len(done.logprobs) == len(done.token_ids)


def test_stop_strings_end_a_text_before_them_wherever_they_fall(tiny: EmbeddedEngine) -> None:
    whole = tiny.complete("Hello", temperature=1.0, seed=11, max_tokens=40).text
    for cut in range(1, len(whole) - 2):
        stop = whole[cut : cut + 2]
        done = tiny.complete("Hello", temperature=1.0, seed=11, max_tokens=40, stop=(stop,))
        assert done.finish_reason == "stop" and done.matched_stop == stop
        assert done.text == whole[: whole.index(stop)]


def test_stop_ids_end_tokens_and_limits_end_a_text_and_say_so(tiny: EmbeddedEngine) -> None:
    free = tiny.complete("Hello", max_tokens=12)
    assert free.finish_reason == "length" and len(free.token_ids) == 12
    stop = free.token_ids[5]
    at = free.token_ids.index(stop)
    done = tiny.complete("Hello", max_tokens=12, stop_ids=(stop,))
    assert done.finish_reason == "stop" and done.matched_stop == stop and done.token_ids == free.token_ids[: at + 1]
    held = tiny.complete("Hello", max_tokens=12, stop_ids=(stop,), min_tokens=9)
    assert len(held.token_ids) >= 9 and stop not in held.token_ids[:9]
    end = tiny.tokenizer.eos_ids[0]
    ended = tiny.complete("Hello", max_tokens=12, logit_bias={end: 1000.0})
    assert ended.finish_reason == "stop" and ended.token_ids == (end,) and ended.text == ""
    assert len(tiny.complete("Hello", max_tokens=12, logit_bias={end: 1000.0}, ignore_eos=True).token_ids) == 12


def test_penalties_and_bias_change_what_they_should(tiny: EmbeddedEngine) -> None:
    plain = tiny.complete("Hello", max_tokens=20)
    assert len(set(plain.token_ids)) < 20  # greedy text of the tiny model repeats itself
    assert len(set(tiny.complete("Hello", max_tokens=20, presence_penalty=100.0).token_ids)) == 20
    assert len(set(tiny.complete("Hello", max_tokens=20, frequency_penalty=100.0).token_ids)) == 20
    assert tiny.complete("Hello", max_tokens=20, repetition_penalty=50.0).token_ids != plain.token_ids
    assert set(tiny.complete("Hello", max_tokens=6, logit_bias={65: 1000.0}).token_ids) == {65}


def test_a_shared_prefix_is_computed_once(tiny: EmbeddedEngine) -> None:
    prefix = "Forty characters of instructions, always the same: "
    done = run(tiny, [Request(prompt=prefix + str(i), id=str(i), sampling=SamplingParams(max_tokens=4)) for i in range(5)])
    cached = sorted(completion.usage.cached_tokens for completion in done.values())
    assert cached[0] == 0 and all(4 * (len(prefix) // 4) - 4 <= tokens for tokens in cached[1:])


def test_cancelling_ends_a_request_and_frees_its_blocks(tiny: EmbeddedEngine) -> None:
    events = tiny.generate([Request(prompt="Hello", id="c", sampling=SamplingParams(temperature=1.0, seed=1, max_tokens=1500))])
    next(events)
    tiny.cancel("c")
    last = list(events)[-1]
    assert isinstance(last, Done) and isinstance(last.result, Completion) and last.result.finish_reason == "cancelled"
    assert 0 < len(last.result.token_ids) < 1500
    events = tiny.generate([Request(prompt="Hello", id="b", beam=BeamParams(width=2, max_tokens=900))])
    threading.Timer(0.05, tiny.cancel, ("b",)).start()
    (last,) = list(events)
    assert isinstance(last, Failed) and isinstance(last.error, CancelledError)


def test_closing_the_iterator_cancels_what_is_left(tiny: EmbeddedEngine) -> None:
    names = [str(i) for i in range(3)]
    events = tiny.generate(
        [Request(prompt="Hello", id=i, sampling=SamplingParams(temperature=1.0, seed=1, max_tokens=400)) for i in names]
    )
    next(events)
    jobs = [each.job for each in tiny._worker._scheduler.running]
    events.close()
    assert tiny.complete("x", max_tokens=2).finish_reason == "length"
    assert jobs and all(job.cancelled for job in jobs)
    while not tiny._worker._scheduler.idle:  # ends at the next token: the test's time limit would tell
        pass
    assert all(job.books.passes < 400 for job in jobs)


def test_cancelling_takes_effect_while_a_long_prompt_is_computed(tiny: EmbeddedEngine) -> None:
    with EmbeddedEngine("tiny", batch_rows=32) as engine:
        events = engine.generate([Request(prompt=list(range(33, 97)) * 60, id="long")])
        threading.Timer(0.02, engine.cancel, ("long",)).start()
        (done,) = [event for event in events if isinstance(event, Done)]
        assert isinstance(done.result, Completion) and done.result.finish_reason == "cancelled"
        assert done.result.usage.rows < 3840 and done.result.token_ids == ()


def test_a_waiting_request_can_be_cancelled(tiny: EmbeddedEngine) -> None:
    with EmbeddedEngine("tiny", kv_blocks=40, block_size=4) as engine:
        requests = [
            Request(prompt="Hello", id=i, sampling=SamplingParams(temperature=1.0, seed=1, max_tokens=150)) for i in "ab"
        ]
        events = engine.generate(requests)
        assert isinstance(next(events), Delta)
        engine.cancel("b")
        done = {event.request_id: event.result for event in events if isinstance(event, Done)}
        assert done["b"].finish_reason == "cancelled" and done["a"].finish_reason in ("length", "stop")  # type: ignore[union-attr]


def test_a_pass_that_fails_ends_only_the_request_that_made_it_fail(
    tiny: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = tiny._forward.decoder.forward

    def fail_on_zs(tokens: torch.Tensor, *rest: object) -> torch.Tensor:
        if bool((tokens == ord("z")).sum() > 3):
            raise RuntimeError("no zzzz please")
        return forward(tokens, *rest)  # type: ignore[arg-type]

    expected = {prompt: tiny.complete(prompt, max_tokens=12).token_ids for prompt in PROMPTS}
    monkeypatch.setattr(tiny._forward.decoder, "forward", fail_on_zs)
    requests = [Request(prompt=prompt, id=prompt, sampling=SamplingParams(max_tokens=12)) for prompt in (*PROMPTS, "zzzzzz")]
    events = list(tiny.generate(requests))
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert failed.request_id == "zzzzzz" and "no zzzz please" in str(failed.error)
    done = {event.request_id: event.result.token_ids for event in events if isinstance(event, Done)}  # type: ignore[union-attr]
    assert done == expected


def test_a_validator_that_exits_or_calls_the_engine_harms_nobody_else(tiny: EmbeddedEngine) -> None:
    class Leaves(pydantic.BaseModel):
        n: int = pydantic.Field(ge=0, le=9)

        @pydantic.field_validator("n")
        @classmethod
        def leave(cls, value: int) -> int:
            raise SystemExit(3)

    class Calls(pydantic.BaseModel):
        n: int = pydantic.Field(ge=0, le=9)

        @pydantic.field_validator("n")
        @classmethod
        def call(cls, value: int) -> int:
            tiny.complete("x", max_tokens=1)
            return value

    with pytest.raises(ToolkitError, match="SystemExit"):
        tiny.beam("x", schema=Leaves, width=2)
    with pytest.raises(ToolkitError, match="validator"):
        tiny.beam("x", schema=Calls, width=2)
    assert tiny.complete("x", max_tokens=2).finish_reason == "length"


def test_small_passes_serve_every_request_in_turn(tiny: EmbeddedEngine) -> None:
    with EmbeddedEngine("tiny", batch_rows=32, kv_blocks=4096, block_size=4, prefix_cache=False) as engine:
        many = [
            Request(prompt="Hello", id=f"m{i}", sampling=SamplingParams(temperature=1.0, seed=i, n=30, max_tokens=40))
            for i in range(2)
        ]
        long = Request(prompt=list(range(33, 97)) * 40, id="long", sampling=SamplingParams(max_tokens=1))
        short = Request(prompt="Hi", id="short", sampling=SamplingParams(max_tokens=1))
        order = [event.request_id for event in engine.generate([*many, long, short]) if isinstance(event, Done)]
        assert order.index("short") < order.index("long")  # a short prompt does not wait behind a long one
        assert min(order.index("m0"), order.index("m1")) >= 1 and {*order} == {"m0", "m1", "long", "short"}


def test_results_come_while_later_requests_are_still_taken_from_the_stream(tiny: EmbeddedEngine) -> None:
    log: list[str] = []

    def stream() -> Iterator[Request]:
        for i in range(6):
            log.append(f"take {i}")
            yield Request(prompt="Hello", id=str(i), sampling=SamplingParams(max_tokens=1))
            time.sleep(0.1)  # a slow source: the tiny model is done long before the next request is there

    for event in tiny.generate(stream()):
        if isinstance(event, Done):
            log.append(f"done {event.request_id}")
    assert log.index("done 0") < log.index("take 5") and {f"done {i}" for i in range(6)} <= set(log)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_dtype_that_is_offered_runs(dtype: str) -> None:
    with EmbeddedEngine("tiny", dtype=dtype, block_size=4) as engine:
        shared = "a beginning that all of the beams have in common, long enough to be worth sharing " * 4
        assert engine.beam(shared, grammar=SCHEMA, width=4, max_tokens=40).valid
        assert len(engine.complete(shared, max_tokens=5).token_ids) == 5
        assert engine.score("Hello", [[65, 66]])[0][0] < 0


def test_what_cannot_run_fails_alone_with_both_numbers(tiny: EmbeddedEngine) -> None:
    context = tiny.capabilities.context
    events = list(
        tiny.generate(
            [
                Request(prompt=[65] * (context + 7), id="long"),
                Request(prompt="ok", id="ok", sampling=SamplingParams(max_tokens=2)),
                Request(prompt="wide", id="wide", beam=BeamParams(width=200, max_tokens=100)),
                Request(prompt=[999], id="id"),
                Request(prompt="", id="empty"),
                Request(prompt="x", id="bias", sampling=SamplingParams(logit_bias={9999: 1.0})),
                Request(prompt=[65, "x"], id="mixed"),  # type: ignore[list-item]
                Request(prompt="x", id="both", beam=BeamParams(), sampling=SamplingParams(temperature=1.0)),
            ]
        )
    )
    failed = {event.request_id: event.error for event in events if isinstance(event, Failed)}
    assert (
        isinstance(failed["long"], ContextError)
        and str(context) in str(failed["long"])
        and str(context + 7) in str(failed["long"])
    )
    assert isinstance(failed["wide"], ContextError) and "kv_blocks" in str(failed["wide"])
    assert "999" in str(failed["id"]) and "prompt" in str(failed["empty"]) and "9999" in str(failed["bias"])
    assert isinstance(failed["both"], UnsupportedError) and "mixed" in failed
    assert any(isinstance(event, Done) and event.request_id == "ok" for event in events)


def test_the_context_ends_a_text_where_max_tokens_would_go_past_it(tiny: EmbeddedEngine) -> None:
    context = tiny.capabilities.context
    with EmbeddedEngine("tiny", kv_blocks=1024, block_size=4) as engine:
        done = engine.complete([65] * (context - 3), max_tokens=50)
        assert done.finish_reason == "length" and len(done.token_ids) == 3


def test_duplicate_ids_and_unknown_parameters_are_refused(tiny: EmbeddedEngine) -> None:
    with pytest.raises(UsageError, match="twice"):
        list(tiny.generate([Request(prompt="x", id="twice"), Request(prompt="y", id="twice")]))
    with pytest.raises(UsageError, match="temprature"):
        tiny.complete("x", temprature=1.0)
    with pytest.raises(UsageError, match="one grammar"):
        tiny.complete("x", regex="a", choices=["b"])
    with pytest.raises(UsageError, match="oracle"):
        EmbeddedEngine("tiny", drafter="oracle")
    with pytest.raises(UsageError, match="without a drafter"):
        EmbeddedEngine("tiny", draft={"tokens": 3})
    with pytest.raises(UsageError, match="disagree"):
        open_engine("embedded:mtp", model="tiny", drafter="none")
    with pytest.raises(UsageError, match=r"kvblocks.*kv_blocks"):
        open_engine("embedded", model="tiny", kvblocks=3)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("prompt", lambda: Request(prompt=None)), ("prompt", lambda: Request(prompt=b"hi")), ("prompt", lambda: Request(prompt=5)),
        ("sampling", lambda: Request(prompt="x", sampling={})), ("kind", lambda: Grammar("ebnf", "a")), ("source", lambda: Grammar("regex", 5)),
        ("stop_ids", lambda: SamplingParams(stop_ids=["x"])), ("stop_ids", lambda: SamplingParams(stop_ids=("x",))),
        ("logit_bias", lambda: SamplingParams(logit_bias={"5": 1.0})), ("logit_bias", lambda: SamplingParams(logit_bias={5: float("nan")})),
        ("logit_bias", lambda: SamplingParams(logit_bias={5: None})), ("logprob_ids", lambda: SamplingParams(logprob_ids=(1.5,))),
    ],
)  # fmt: skip
def test_records_are_checked_at_birth(name: str, make: Callable[[], object]) -> None:
    with pytest.raises(UsageError, match=name):
        make()


def test_the_smallest_temperature_is_greedy_not_garbage(tiny: EmbeddedEngine) -> None:
    greedy = tiny.complete("Hello", max_tokens=8).token_ids
    assert tiny.complete("Hello", temperature=1e-300, seed=1, max_tokens=8).token_ids == greedy


def test_a_closed_engine_says_so_and_running_requests_end() -> None:
    engine = EmbeddedEngine("tiny")
    events = engine.generate([Request(prompt="Hello", sampling=SamplingParams(temperature=1.0, seed=1, max_tokens=3000))])
    next(events)
    engine.close()
    last = list(events)[-1]
    assert isinstance(last, Failed) and isinstance(last.error, EngineError)
    with pytest.raises(EngineError, match="closed"):
        engine.complete("x")
    engine.close()


def test_more_requests_than_blocks_wait_their_turn() -> None:
    with EmbeddedEngine("tiny", kv_blocks=24, block_size=4, prefix_cache=False) as engine:
        requests = [
            Request(prompt="Hello there", id=str(i), beam=BeamParams(width=2, max_tokens=24), grammar=SCHEMA) for i in range(9)
        ]
        done = [event for event in engine.generate(requests) if isinstance(event, Done)]
        assert len(done) == 9 and len({event.result.text for event in done}) == 1
        assert engine._forward.pool.peak <= 24 and engine.kv_blocks_in_use == 0


def test_scores_are_log_probabilities_of_the_recomputed_model(tiny: EmbeddedEngine) -> None:
    prompt = tiny.tokenizer.encode("Hello")
    lines = [[65], [], [66, 67, 68], [65, 66]]
    found = tiny.score("Hello", lines)
    for line, logprobs in zip(lines, found, strict=True):
        table = torch.log_softmax(logits_after(tiny._forward.decoder, prompt + line)[:, : tiny.tokenizer.vocab_size], -1)
        assert logprobs == pytest.approx([float(table[len(prompt) - 1 + i, token]) for i, token in enumerate(line)], abs=1e-4)


def test_an_engine_is_not_copied_and_bad_options_are_named() -> None:
    with EmbeddedEngine("tiny") as engine:
        for copy in (pickle.dumps, deepcopy):
            with pytest.raises(UnsupportedError, match="running thread"):
                copy(engine)
    for name, value in (
        ("threads", "a"),
        ("threads", 10**6),
        ("kv_blocks", True),
        ("kv_blocks", 0),
        ("batch_rows", 1),
        ("dtype", "int4"),
    ):
        with pytest.raises(UsageError, match=name):
            EmbeddedEngine("tiny", **{name: value})  # type: ignore[arg-type]


def test_logits_that_are_not_finite_are_an_error_not_an_answer(tiny: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = tiny._forward.decoder.logits
    monkeypatch.setattr(tiny._forward.decoder, "logits", lambda hidden: logits(hidden) * float("nan"))
    for ask in (
        lambda: tiny.complete("x"),
        lambda: tiny.complete("x", temperature=1.0),
        lambda: tiny.beam("x", grammar=SCHEMA),
    ):
        with pytest.raises(EngineError, match="not finite"):
            ask()
