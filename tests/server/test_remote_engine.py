"""The engine over HTTP on the real server: its beams, texts and scores are those of the embedded engine over the same folder in float32."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit.bench import bfcl
from toolkit.bench.arms import grammar
from toolkit.cli import main
from toolkit.contracts import BeamParams, BeamResult, Completion, Done, Engine, Failed, Grammar, Request, SamplingParams
from toolkit.engine.engine import open_engine
from toolkit.engine.remote.engine import SGLangEngine
from toolkit.errors import UsageError
from toolkit.lang import run_program
from toolkit.lang.program import list_programs
from toolkit.lang.serve import Server
from toolkit.results import only_result

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
RECORDS, NEEDED, WITHIN = 50, 48, 1e-3


@pytest.fixture(scope="module")
def remote(sglang_server: Server) -> Iterator[SGLangEngine]:
    with SGLangEngine(sglang_server.url) as engine:
        yield engine


@pytest.fixture(scope="module")
def embedded(sglang_server: Server) -> Iterator[Engine]:
    engine = open_engine("embedded", model=sglang_server.model, format="float32")
    yield engine
    engine.close()


def test_the_engine_knows_the_server_it_is_on(remote: SGLangEngine, embedded: Engine) -> None:
    here, there = embedded.capabilities, remote.capabilities
    assert (there.fingerprint, there.vocab_size) == (here.fingerprint, here.vocab_size)
    assert there.context <= here.context
    assert remote.notes == ()  # its scores are raw
    assert remote.tokenizer.fingerprint == embedded.tokenizer.fingerprint


def test_greedy_text_log_probabilities_and_scores_agree(remote: SGLangEngine, embedded: Engine) -> None:
    prompt = "The capital of France is"
    done = []
    for engine in (remote, embedded):
        result = engine.complete(prompt, max_tokens=12, logprobs=2, logprob_ids=(5,), stop=("answer",))  # type: ignore[attr-defined]
        assert isinstance(result, Completion)
        done.append(result)
    there, here = done
    assert (there.text, there.token_ids, there.matched_stop) == (here.text, here.token_ids, here.matched_stop)
    for a, b in zip(there.logprobs, here.logprobs, strict=True):
        assert (a.token_id, [i for i, _ in a.top]) == (b.token_id, [i for i, _ in b.top])
        assert a.logprob == pytest.approx(b.logprob, abs=WITHIN) and a.asked[0][1] == pytest.approx(b.asked[0][1], abs=WITHIN)
    lines = [remote.tokenizer.encode(text) for text in (" Paris", "", " Berlin, I think")]
    for mine, its in zip(embedded.score(prompt, lines), remote.score(prompt, lines), strict=True):
        assert its == pytest.approx(mine, abs=WITHIN)


def test_beams_agree_on_fifty_function_calls_a_request_a_step_out_of_the_cache(remote: SGLangEngine, embedded: Engine) -> None:
    items = bfcl.load(max_tokens=96).first(RECORDS)
    params = BeamParams(width=4, alpha=0.0, max_tokens=96)
    requests = [Request(prompt=item.prompt, id=item.id, beam=params, grammar=grammar(item)) for item in items]
    found: list[dict[str, BeamResult | None]] = []
    for engine in (remote, embedded):
        events = {event.request_id: event for event in engine.generate(requests) if isinstance(event, Done | Failed)}
        results = {name: event.result if isinstance(event, Done) else None for name, event in events.items()}
        found.append({name: one if isinstance(one, BeamResult) else None for name, one in results.items()})
    there, here = found
    assert there.keys() == here.keys() == {item.id for item in items}
    same = [name for name in here if (here[name] and here[name].value) == (there[name] and there[name].value)]  # type: ignore[union-attr]
    assert len(same) >= NEEDED, [name for name in here if name not in same]
    for name in same:
        mine, its = here[name], there[name]
        assert mine is None or its is None or its.score == pytest.approx(mine.score, abs=WITHIN)
    usages = [one.usage for one in there.values() if one is not None]
    assert all(
        one.requests <= one.passes + 2 for one in usages
    )  # what was shared is warmed once; a line may be asked about again
    sent = sum(one.tokens_sent - one.input_tokens for one in usages)
    computed = sum(one.rows - (one.input_tokens - one.cached_tokens) for one in usages)
    assert 1 - computed / sent > 0.95


@pytest.mark.parametrize("name", list_programs(ROOT))
def test_a_program_gives_the_same_on_both_engines(remote: SGLangEngine, embedded: Engine, name: str) -> None:
    there, here = (run_program(name, engine=engine, root=ROOT)["value"] for engine in (remote, embedded))
    assert there == here


def test_what_the_servers_grammar_refuses_is_dropped_for_it_and_reported(remote: SGLangEngine) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9, "multipleOf": 1}, "day": {"type": "string", "format": "date", "maxLength": 10}},
        "required": ["n", "day"],
        "additionalProperties": False,
    }  # fmt: skip
    prompt = 'JSON with a number and a day: {"n": 3, "day": "2024-05-17"}\nJSON with a number and a day: '
    done = only_result(remote.generate([Request(prompt=prompt, grammar=Grammar("json_schema", json.dumps(schema)))]))
    assert isinstance(done, Completion)
    assert json.loads(done.text).keys() == {"n", "day"}
    assert done.partial == ("multipleOf at /properties/n", "maxLength at /properties/day")


def test_samples_are_drawn_together_and_end_apart(remote: SGLangEngine) -> None:
    params = SamplingParams(n=3, temperature=1.0, top_p=0.9, max_tokens=6)
    done = [
        event.result
        for event in remote.generate([Request(prompt="Once upon a time", sampling=params)])
        if isinstance(event, Done)
    ]
    assert len(done) == 3 and all(len(one.token_ids) <= 6 for one in done if isinstance(one, Completion))


def test_ids_that_would_kill_the_server_are_refused_here(remote: SGLangEngine) -> None:
    for send in (
        lambda: remote.complete([999_999]),
        lambda: remote.complete("x", logprobs=99_999),
        lambda: remote.score("x", [[49_152]]),
    ):  # type: ignore[list-item]
        with pytest.raises(UsageError):
            send()
    assert remote.complete("x", max_tokens=1).token_ids


def test_the_command_line_takes_the_server_as_its_engine(
    sglang_server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    (tmp_path / "s.json").write_text(json.dumps(schema), encoding="utf-8")
    (tmp_path / "in.jsonl").write_text('{"text": "I live in Rome."}\n{"text": "Oslo is cold."}\n', encoding="utf-8")
    place = ("--schema", str(tmp_path / "s.json"), "--width", "2", "--engine", sglang_server.url)
    assert main(["extract", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "out.jsonl"), *place, "--json"]) == 0
    summary = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert summary["valid"] == 2 and summary["usage"]["requests"] > 0
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert all(line["valid"] and line["usage"]["tokens_sent"] > 0 for line in lines)
    assert main(["beam", "Where is the Colosseum?", *place, "--json"]) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["value"]["city"] in ("Oslo", "Rome")
    assert main(["generate", "Hi", "--max-tokens", "3", "--engine", sglang_server.url]) == 0
