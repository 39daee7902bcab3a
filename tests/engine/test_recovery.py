"""Where a verifier commits what it should not, the caller gets what plain decoding writes, and is told of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from tests.engine.guessers import Scripted, knowing
from toolkit.contracts import Completion, Delta, Done, Failed, Grammar, Request, SamplingParams, Watch
from toolkit.draft.contract import Budget
from toolkit.draft.tree import DraftTree, chain
from toolkit.engine.breaker import Breaker
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.loops.speculative import Line
from toolkit.engine.pace import Pace
from toolkit.engine.pass_costs import PassCosts
from toolkit.errors import EngineError
from toolkit.gate.drill import echo_engine
from toolkit.gate.echo import prompt_of
from toolkit.gate.faults.rewrite import commit, rewriting

DOCUMENT = '{"name":"Zoë","city":"Köln","age":41,"tags":["x1","y2"]}'
JSON = Watch(kind="json")
Rewrite = Callable[[list[int], random.Random], list[int]]


@pytest.fixture
def engine() -> Iterator[EmbeddedEngine]:
    with echo_engine() as opened:
        yield opened
        assert opened.kv_blocks_in_use == 0
        opened._forward.pool.check()


def asked(document: str = DOCUMENT, **more: object) -> Request:
    raw = document.encode()
    return replace(Request(prompt=prompt_of(raw), sampling=SamplingParams(max_tokens=len(raw) + 30), watch=JSON), **more)  # type: ignore[arg-type]


def run(engine: EmbeddedEngine, *requests: Request) -> tuple[list[Completion], dict[int, str]]:
    """Results of the first request's samples or of all requests, and what was streamed of each."""
    results: dict[tuple[str, int], Completion] = {}
    streamed: dict[tuple[str, int], str] = {}
    for event in engine.generate(replace(each, id=f"{i}") for i, each in enumerate(requests)):
        assert not isinstance(event, Failed), event.error
        if isinstance(event, Delta):
            key = event.request_id, event.index
            streamed[key] = streamed.get(key, "") + event.text
        if isinstance(event, Done):
            assert isinstance(event.result, Completion)
            results[event.request_id, event.index] = event.result
    keys = sorted(results)
    return [results[key] for key in keys], {i: streamed.get(key, "") for i, key in enumerate(keys)}


def double(burst: list[int], dice: random.Random) -> list[int]:
    """A colon comes twice: never JSON, for no string of the document has one."""
    place = burst.index(ord(":")) if ord(":") in burst else None
    return burst if place is None else [*burst[:place], ord(":"), *burst[place:]]


def test_a_doubled_mark_never_reaches_the_caller(engine: EmbeddedEngine) -> None:
    rewriting("doubled", double, engine)
    (found,), streamed = run(engine, asked())
    assert found.text == DOCUMENT == streamed[0] and found.valid and found.value["city"] == "Köln"
    (incident,) = found.incidents
    assert (incident.kind, incident.found_by, incident.drafter, incident.streamed) == ("speculation", "parser", "ngram", False)
    assert DOCUMENT.encode()[incident.offset - 1 : incident.offset] == b":" and incident.tokens and incident.why
    assert incident.position == incident.offset  # one byte a token
    usage = found.usage
    assert usage.output_tokens == usage.steps + usage.accepted + usage.appended - usage.trimmed - usage.discarded


@pytest.mark.parametrize(
    ("watch", "document", "mark", "found_by"),
    [
        (
            Watch(kind="tools", format="json", tools='[{"name":"wx","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}]'),
            '{"name":"wx","arguments":{"city":"Köln"}}',
            ":",
            "parser",
        ),
        (Watch(kind="code"), "def go(x):\n  y = [x, 2*3]\n  print(y)\n", "(", "validator"),
    ],
    ids=["tools", "code"],
)  # fmt: skip
def test_tool_calls_and_code_are_recovered_as_json_is(
    engine: EmbeddedEngine, watch: Watch, document: str, mark: str, found_by: str
) -> None:
    def twice(burst: list[int], dice: random.Random) -> list[int]:
        place = burst.index(ord(mark)) if ord(mark) in burst else None
        return burst if place is None else [*burst[:place], ord(mark), *burst[place:]]

    rewriting("twice", twice, engine)
    (found,), streamed = run(engine, asked(document, watch=watch))
    assert found.text == document and found.valid
    assert [(each.kind, each.found_by) for each in found.incidents] == [("speculation", found_by)]
    assert (streamed[0] == document) == (found_by == "parser") == (not found.incidents[0].streamed)


def test_the_incident_says_where_the_text_first_went_wrong_however_late_that_was_noticed(engine: EmbeddedEngine) -> None:
    """Letters of a string change unseen; the parser only sees a mark that comes twice later on."""
    hit: list[int] = []

    class Broken(Line):
        def verify(self, rows: torch.Tensor):  # type: ignore[no-untyped-def]
            before = len(self.sample.ids)
            walk = super().verify(rows)
            burst = self.sample.ids[before:]
            if not hit and ord("o") in burst and walk.taken:
                hit.append(before + burst.index(ord("o")))
                commit(self.sample, before, [ord("0") if token == ord("o") else token for token in burst])
            elif hit and ord(":") in burst and walk.taken:
                commit(self.sample, before, double(burst, random.Random(0)))
            return walk

    engine._line = Broken
    (found,), streamed = run(engine, asked())
    assert found.text == DOCUMENT and found.valid
    (incident,) = found.incidents
    assert incident.position == hit[0] and incident.kind == "speculation"
    assert incident.streamed and "streamed" in " ".join(found.notes)
    assert not streamed[0].startswith(DOCUMENT[: len(streamed[0])])  # told before anyone could know, and then nothing more
    assert "0" in streamed[0] and len(streamed[0]) < len(DOCUMENT)


def test_a_fault_of_the_model_is_the_models_and_its_text_stands(engine: EmbeddedEngine) -> None:
    bad = '{"name":"Zoë",,"city":"Köln"}'
    (plain,), _ = run(engine, asked(bad, speculate=False))
    (found,), streamed = run(engine, asked(bad))
    assert found.text == plain.text == streamed[0] == bad and found.valid is False and plain.valid is False
    assert [incident.kind for incident in found.incidents] == ["model"] and plain.incidents == ()
    assert found.violations == plain.violations and found.usage.discarded == 0
    assert engine.breaker.state == "CLOSED"


def test_what_only_the_end_shows_is_found_at_the_end(engine: EmbeddedEngine) -> None:
    """The text stops early: no byte of it is wrong."""

    class Broken(Line):
        def verify(self, rows: torch.Tensor):  # type: ignore[no-untyped-def]
            walk = super().verify(rows)
            if walk.taken and len(self.sample.ids) > 20:
                self.sample.reason = "stop"
            return walk

    engine._line = Broken
    (found,), _ = run(engine, asked())
    assert found.text == DOCUMENT and found.valid
    assert [(each.kind, each.found_by) for each in found.incidents] == [("speculation", "validator")]


def test_a_text_that_was_cut_off_is_no_incident(engine: EmbeddedEngine) -> None:
    (found,), streamed = run(engine, asked(sampling=SamplingParams(max_tokens=30)))
    assert [each.keyword for each in found.violations] == ["max_tokens"] and found.incidents == ()
    assert found.usage.rechecked == 0 and streamed[0] == found.text == DOCUMENT.encode()[:30].decode(errors="replace")


@pytest.mark.parametrize("stop", [{"stop": ("K",)}, {"stop_ids": (ord("K"),)}], ids=["string", "id"])
def test_a_text_that_its_stop_ended_inside_its_grammar_is_not_read_again(
    engine: EmbeddedEngine, stop: dict[str, object]
) -> None:
    sampling = SamplingParams(max_tokens=80, **stop)  # type: ignore[arg-type]
    (found,), streamed = run(engine, asked(sampling=sampling, watch=None, grammar=Grammar("json_schema", "{}")))
    assert found.text == streamed[0] == DOCUMENT[: DOCUMENT.index("K")] and found.valid is False
    assert found.usage.accepted > 0 == found.usage.rechecked and found.incidents == ()
    (watched,), _ = run(engine, asked(sampling=sampling))  # no mask vouches for it: a broken verifier may have made the stop
    assert watched.usage.rechecked > 0 and [each.kind for each in watched.incidents] == ["model"]


@pytest.mark.parametrize("error", [EngineError("settled nodes that are not there"), IndexError("no such node")])
def test_an_engine_that_fails_on_a_draft_goes_on_without(engine: EmbeddedEngine, error: Exception) -> None:
    class Broken(Line):
        def verify(self, rows: torch.Tensor):  # type: ignore[no-untyped-def]
            walk = super().verify(rows)
            if walk.taken:
                raise error
            return walk

    engine._line = Broken
    (found,), streamed = run(engine, asked())
    assert found.text == DOCUMENT == streamed[0]
    assert [(each.kind, each.found_by) for each in found.incidents] == [("speculation", "engine")]


def test_an_engine_that_fails_anyway_fails_as_plain_decoding_does(engine: EmbeddedEngine) -> None:
    class Broken(Line):
        def verify(self, rows: torch.Tensor):  # type: ignore[no-untyped-def]
            raise EngineError("no model here")

    engine._line = Broken
    (event,) = engine.generate([asked()])
    assert isinstance(event, Failed) and "no model here" in str(event.error)


def test_several_samples_recover_each_for_itself(engine: EmbeddedEngine) -> None:
    sampling = SamplingParams(max_tokens=90, temperature=0.1, seed=4, n=4)
    plain, _ = run(engine, asked(sampling=sampling, speculate=False))
    rewriting("doubled", double, engine)
    found, streamed = run(engine, asked(sampling=sampling), asked(sampling=sampling))
    assert [each.text for each in found] == [each.text for each in plain] * 2 == list(streamed.values())
    assert sum(len(each.incidents) for each in found) == 8


def test_log_probabilities_and_forced_tokens_are_those_of_plain_decoding(engine: EmbeddedEngine) -> None:
    schema = '{"type":"object","properties":{"name":{"type":"string"},"city":{"type":"string"},"age":{"type":"integer"},"tags":{"type":"array","items":{"type":"string"}}},"required":["name","city","age","tags"],"additionalProperties":false}'
    sampling = SamplingParams(max_tokens=90, logprobs=2)
    request = asked(sampling=sampling, grammar=Grammar("json_schema", schema), watch=None)
    (plain,), _ = run(engine, replace(request, speculate=False))
    rewriting("doubled", double, engine)
    (found,), _ = run(engine, request)
    assert found.text == plain.text == DOCUMENT and found.incidents
    assert len(found.logprobs) == len(found.token_ids)
    for a, b in zip(found.logprobs, plain.logprobs, strict=True):
        assert a.token_id == b.token_id and a.logprob == pytest.approx(b.logprob, abs=1e-3)


def test_what_speculation_left_in_the_cache_is_not_used_again(engine: EmbeddedEngine) -> None:
    """Stale keys would make the next request with the same beginning wrong as well, speculated or not."""
    from toolkit.gate.faults.stale_kv import break_

    break_(engine)
    for seed in range(6):
        (_, *_), _ = run(engine, *(asked(DOCUMENT.replace("41", str(40 + seed))) for _ in range(2)))
        continued = prompt_of(DOCUMENT.replace("41", str(40 + seed)).encode())
        (after,), _ = run(engine, replace(asked(), prompt=continued, speculate=False))
        assert after.text == DOCUMENT.replace("41", str(40 + seed))


def test_a_cancelled_recheck_frees_its_blocks(engine: EmbeddedEngine) -> None:
    rewriting("doubled", double, engine)
    events = engine.generate([asked(id="gone", sampling=SamplingParams(max_tokens=90, n=2, seed=1, temperature=0.1))])
    for count, event in enumerate(events):
        if count == 0:
            engine.cancel("gone")
        if isinstance(event, Done):
            assert isinstance(event.result, Completion) and event.result.finish_reason == "cancelled"


def test_the_breaker_holds_speculation_and_says_so_everywhere(caplog: pytest.LogCaptureFixture) -> None:
    with echo_engine(breaker=Breaker(1, window=10)) as engine:
        rewriting("doubled", double, engine)
        for _ in range(2):
            run(engine, asked())
        assert engine.breaker.is_held and "HOLD" in caplog.text
        (found,), _ = run(engine, asked())
        assert found.text == DOCUMENT and found.usage.proposed == 0 and found.incidents == ()
        assert any("on hold" in note for note in found.notes)
        assert "toolkit_breaker_held 1" in engine.metrics.prometheus()
        assert 'toolkit_incidents_total{drafter="ngram",found_by="parser",kind="speculation"} 2' in engine.metrics.prometheus()
        engine._line = Line
        engine.breaker.reset("the fault is gone")
        (found,), _ = run(engine, asked())
        assert found.usage.accepted > 0 and found.notes == ()


def test_texts_that_run_while_the_breaker_trips_are_all_read_again() -> None:
    with echo_engine(breaker=Breaker(0, window=10)) as engine:
        rewriting("other letters", lambda burst, dice: [ord("Z") if token == ord("o") else token for token in burst], engine)
        letters = engine._line

        class Sometimes(letters):  # type: ignore[misc, valid-type]
            def verify(self, rows: torch.Tensor):  # type: ignore[no-untyped-def]
                before = len(self.sample.ids)
                walk = letters.verify(self, rows)
                if self.job.id == "0" and walk.taken and not self.sample.reason:
                    commit(self.sample, before, double(self.sample.ids[before:], random.Random(0)))
                return walk

        engine._line = Sometimes
        found, _ = run(engine, *(asked() for _ in range(8)))
        assert all(each.text == DOCUMENT for each in found)
        assert engine.breaker.is_held


def test_drawn_drafts_are_written_anew_from_the_pass_that_was_wrong() -> None:
    """Drafts with a q: what was told before the faulty pass stays, for it is as good a draw as any."""
    with EmbeddedEngine("tiny", format="int8", kv_blocks=256, breaker=Breaker(None)) as engine:
        flat = torch.full((1, engine.tokenizer.vocab_size), 0.0)
        flat[:, :256] = 1 / 256

        def guess(text: list[int], budget: Budget, noise: random.Random) -> DraftTree:
            return chain([noise.randrange(256)], flat)

        engine._source, engine._pace = Scripted(guess), Pace(PassCosts(), tokens=1, nodes=1)  # type: ignore[assignment]
        digits = Watch(kind="json", schema='{"type":"array"}')
        bias = {ord("["): 9.0, ord("1"): 12.0, ord(","): 11.0}
        sampling = SamplingParams(max_tokens=40, temperature=1.0, seed=2, logit_bias=bias, ignore_eos=True)
        found, streamed = run(
            engine, *(Request(prompt="x", watch=digits, sampling=replace(sampling, seed=s)) for s in range(12))
        )
        kinds = {incident.kind for each in found for incident in each.incidents}
        assert kinds <= {"unclear", "speculation", "model"} and "unclear" in kinds
        for i, each in enumerate(found):
            assert each.valid is False
            assert streamed[i] == each.text or any(incident.streamed for incident in each.incidents)
            usage = each.usage
            assert usage.output_tokens == usage.steps + usage.accepted + usage.appended - usage.trimmed - usage.discarded


def test_the_truth_among_noise_is_never_suspected(engine: EmbeddedEngine) -> None:
    """A tree of wrong guesses beside the right one: an honest verifier gives no incident."""
    line = [*prompt_of(DOCUMENT.encode()), *DOCUMENT.encode()]
    engine._source, engine._pace = Scripted(knowing(line, wrong=0.3)), Pace(PassCosts(), tokens=5, nodes=8)  # type: ignore[assignment]
    found, _ = run(engine, *(asked() for _ in range(10)))
    assert all(each.text == DOCUMENT and each.incidents == () and each.usage.accepted > 0 for each in found)
