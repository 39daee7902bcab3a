"""Jobs: one line a record, in order, whatever the engine and the records do."""

from __future__ import annotations

import json
import os
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.scripted_job_engine import ScriptedEngine
from toolkit.errors import ContextError, EngineError, NoValidError, SchemaError, ToolkitError, UnsupportedError, UsageError
from toolkit.jobs.run import Summary, prepare, run_job
from toolkit.jobs.spec import make_spec
from toolkit.schema import parse_json

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def length(text: str) -> dict[str, int]:
    return {"n": len(text)}


def job_of(folder: Path, rows: list[Any], **options: Any) -> Any:
    path = folder / "in.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    options = options if "schema_field" in options else {"schema": SCHEMA, **options}
    return prepare(path, make_spec(options))


def run(
    folder: Path, rows: list[Any], engine: ScriptedEngine, *, resume: bool = False, in_flight: int = 3, **options: Any
) -> Summary:
    return run_job(job_of(folder, rows, **options), folder / "out", engine, resume=resume, in_flight=in_flight)


def lines(folder: Path, name: str = "out") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def rows_of(*texts: str) -> list[dict[str, str]]:
    return [{"text": text} for text in texts]


def test_results_come_in_input_order_though_records_end_out_of_order(tmp_path: Path) -> None:
    texts = [("slow" if index % 3 == 0 else "") + "x" * index for index in range(1, 40)]
    engine = ScriptedEngine(length)
    summary = run(tmp_path, rows_of(*texts), engine, in_flight=4)
    assert [line["value"] for line in lines(tmp_path)] == [length(text) for text in texts]
    assert (summary.total, summary.valid, summary.failed) == (39, 39, 0)
    assert 1 < engine.most_running <= 4


def test_a_line_has_the_promised_fields(tmp_path: Path) -> None:
    run(tmp_path, [{"id": "r1", "text": "abc"}], ScriptedEngine(length))
    (line,) = lines(tmp_path)
    promised = {"id", "value", "valid", "score", "alternatives", "confidence", "usage", "timing"}
    assert promised <= line.keys()
    assert line["id"] == "r1" and line["value"] == {"n": 3} and line["valid"] is True and line["score"] == -0.5
    assert line["confidence"] == {"/n": 0.5}
    assert line["confidence_detail"]["/n"] == {"product": 0.5, "minimum": 0.25, "tokens": 2, "margin": None}
    assert {"value", "score", "sum_logprob", "valid"} <= line["alternatives"][0].keys()


def trouble(text: str) -> dict[str, Any]:
    errors = {
        "refused": NoValidError("no hypothesis is valid", texts=('{"n":"x"}',)),
        "long": ContextError("too long"),
        "grammar": SchemaError("cannot compile"),
        "tired": EngineError("only this one"),
    }
    if text in errors:
        raise errors[text]
    if text == "bug":
        raise ZeroDivisionError("oops")
    return {"n": "many"} if text == "lie" else {"n": 1}


def test_every_failure_goes_to_the_errors_file_with_its_stage_and_stops_nothing(tmp_path: Path) -> None:
    texts = ["ok", "refused", "long", "grammar", "tired", "bug", "lie", "ok"]
    summary = run(tmp_path, ["not json", *rows_of(*texts)], ScriptedEngine(trouble))
    assert [line["index"] for line in lines(tmp_path)] == [1, 8]
    failures = lines(tmp_path, "out.errors.jsonl")
    stages = [(line["index"], line["stage"]) for line in failures]
    assert stages == [(0, "read"), (2, "validate"), (3, "prompt"), (4, "schema"), (5, "decode"), (6, "decode"), (7, "validate")]
    assert all({"id", "stage", "reason", "raw", "where"} <= line.keys() for line in failures)
    assert failures[0]["raw"] == "not json" and failures[0]["where"] == "in.jsonl:1"
    assert failures[1]["raw"] == '{"n":"x"}' and failures[1]["text"] == "refused"
    assert "ZeroDivisionError" in failures[5]["reason"]
    assert dict(summary.failures) == {"read": 1, "validate": 2, "prompt": 1, "schema": 1, "decode": 2}


def test_raw_text_is_bounded(tmp_path: Path) -> None:
    def refuse(text: str) -> None:
        raise NoValidError("no", texts=("y" * 10_000,))

    run(tmp_path, rows_of("x" * 10_000), ScriptedEngine(refuse))
    (line,) = lines(tmp_path, "out.errors.jsonl")
    assert len(line["raw"]) == len(line["text"]) == 2000


def test_a_dead_engine_stops_the_job_and_costs_no_record(tmp_path: Path) -> None:
    rows = rows_of(*(f"{index}" for index in range(10)))

    dead: list[str] = []

    def dies(text: str) -> dict[str, int]:
        dead.extend([text] if text in "456789" else [])
        if dead:
            raise EngineError("gone")
        return length(text)

    with pytest.raises(EngineError, match="gone"):
        run(tmp_path, rows, ScriptedEngine(dies), in_flight=2)
    assert [line["index"] for line in lines(tmp_path)] == [0, 1, 2, 3]
    assert lines(tmp_path, "out.errors.jsonl") == []
    summary = run(tmp_path, rows, ScriptedEngine(length), resume=True)
    assert [line["index"] for line in lines(tmp_path)] == list(range(10))
    assert (summary.resumed_at, summary.done) == (4, 10)


def test_what_still_runs_is_cancelled_when_the_job_stops(tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def stop_after_two(done: int, total: int, failed: int) -> None:
        if done == 2:
            raise StopError

    engine = ScriptedEngine(length)
    job = job_of(tmp_path, rows_of("a1", "b2", "endless 1", "endless 2"))
    with pytest.raises(StopError):
        run_job(job, tmp_path / "out", engine, in_flight=4, on_progress=stop_after_two)
    assert engine.running == 0
    assert [line["index"] for line in lines(tmp_path)] == [0, 1]


def test_a_finished_job_resumes_to_nothing(tmp_path: Path) -> None:
    run(tmp_path, ["bad", *rows_of("a1")], ScriptedEngine(length))
    before = (tmp_path / "out").read_bytes()
    engine = ScriptedEngine(length)
    summary = run(tmp_path, ["bad", *rows_of("a1")], engine, resume=True)
    assert engine.prompts == []
    assert (summary.done, summary.failed, summary.resumed_at) == (2, 1, 2)
    assert (tmp_path / "out").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": rows_of("other")}, "input.sha256"),
        ({"width": 2}, "job.width: 4 -> 2"),
        ({"schema": {"type": "object"}}, "job.schema"),
        ({"engine": ScriptedEngine(length, fingerprint="model-2")}, "engine.model"),
    ],
)
def test_resume_with_other_terms_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    run(tmp_path, rows_of("a1"), ScriptedEngine(length))
    terms = {"rows": rows_of("a1"), "engine": ScriptedEngine(length), **change}
    with pytest.raises(UsageError, match=said):
        run(tmp_path, terms.pop("rows"), terms.pop("engine"), resume=True, **terms)


def test_each_record_can_bring_its_schema_as_an_object_or_as_text(tmp_path: Path) -> None:
    other = {"type": "integer"}
    rows = [
        {"text": "a1", "s": SCHEMA},
        {"text": "b2", "s": json.dumps(SCHEMA)},
        {"text": "c3", "s": other},  # the scripted answer does not fit it
        {"text": "d4"},
        {"text": "e5", "s": "{"},
        {"text": "f6", "s": 3},
        {"text": "g7", "s": {"type": "poem"}},
        {"text": "h8", "s": {"$ref": "https://example.org/s.json"}},
    ]
    run(tmp_path, rows, ScriptedEngine(length), schema_field="s")
    assert [line["index"] for line in lines(tmp_path)] == [0, 1]
    stages = [(line["index"], line["stage"]) for line in lines(tmp_path, "out.errors.jsonl")]
    assert stages == [(2, "validate"), *((index, "schema") for index in range(3, 8))]


def test_prompts_share_everything_before_the_record(tmp_path: Path) -> None:
    engine = ScriptedEngine(length)
    run(tmp_path, rows_of("a1", "b2"), engine, examples=[{"text": "abc", "value": {"n": 3}}])
    first, second = engine.prompts
    assert list(first)[:-1] == list(second)[:-1]
    assert len(first) == 4


def test_an_example_that_does_not_fit_the_schema_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="example 1 does not fit"):
        job_of(tmp_path, rows_of("a"), examples=[{"text": "abc", "value": {"n": "three"}}])


def test_an_output_inside_the_input_folder_or_equal_to_the_input_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    with pytest.raises(UsageError, match="lies in the input folder"):
        run_job(prepare(folder, make_spec({"schema": SCHEMA})), folder / "out", ScriptedEngine(length))
    job = job_of(tmp_path, rows_of("a"))
    with pytest.raises(UsageError, match="is the input itself"):
        run_job(job, tmp_path / "in.jsonl", ScriptedEngine(length), resume=True)


def refusing(error: Exception) -> Any:
    def answer(text: str) -> Any:
        raise error

    return answer


@pytest.mark.parametrize(
    "error", [SchemaError("no grammar"), ContextError("too few blocks"), UnsupportedError("no beams"), EngineError("dead")]
)
def test_what_the_engine_refuses_for_every_record_is_refused_once_and_before_an_output_exists(
    tmp_path: Path, error: ToolkitError
) -> None:
    with pytest.raises(type(error), match=error.message):
        run(tmp_path, rows_of("a1", "b2"), ScriptedEngine(refusing(error)))
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


class Endless(ScriptedEngine):
    """Its first request never ends by itself."""

    def _one(self, request: Any) -> Any:
        return super()._one(replace(request, prompt="endless") if request.id == "preflight" else request)


def test_the_question_whether_the_engine_can_is_cancelled_once_it_runs(tmp_path: Path) -> None:
    engine = Endless(length)
    assert run(tmp_path, rows_of("a1"), engine).valid == 1
    assert engine.running == 0


def test_an_interrupt_during_that_question_leaves_nothing_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = [KeyboardInterrupt]

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if waits:
            raise waits.pop()
        return wait(*arguments, **options)

    monkeypatch.setattr("toolkit.jobs.prepare.wait", interrupted)
    engine = Endless(length)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, rows_of("a1"), engine)
    assert engine.running == 0 and not (tmp_path / "out").exists()


def test_options_that_change_results_are_terms_of_a_resume(tmp_path: Path) -> None:
    job = job_of(tmp_path, rows_of("a1"))
    run_job(job, tmp_path / "out", ScriptedEngine(length), engine_options={"dtype": "float32"})
    with pytest.raises(UsageError, match=r'engine\.dtype: "float32" -> "bfloat16"'):
        run_job(job, tmp_path / "out", ScriptedEngine(length), engine_options={"dtype": "bfloat16"}, resume=True)


def test_a_line_that_is_gone_is_announced_and_done_again(tmp_path: Path) -> None:
    rows = rows_of("a1", "b2", "c3")
    run(tmp_path, rows, ScriptedEngine(length))
    whole = lines(tmp_path)
    (tmp_path / "out").write_text("".join(json.dumps(line) + "\n" for line in (whole[0], whole[2])))
    notes: list[str] = []
    summary = run_job(job_of(tmp_path, rows), tmp_path / "out", ScriptedEngine(length), resume=True, on_note=notes.append)
    assert lines(tmp_path) == whole
    assert (summary.dropped, summary.resumed_at, len(notes)) == (1, 1, 1)
    assert "the line of index 1 is gone; dropped behind it, and done again: 1" in notes[0]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value", ["\ud800", {"\udfff": 1}, 1e308, 10**307, nested(90), nested(99), "\u2028\x00\x7f", float("1e-320"), nested(100)]
)
def test_whatever_is_written_is_json_that_the_strict_reader_reads(tmp_path: Path, value: Any) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    Path(os.fsdecode(bytes(folder) + b"/a\xff")).write_text("x")
    Path(os.fsdecode(bytes(folder) + b"/b\xff")).write_bytes(b"\0")
    job = prepare(folder, make_spec({"schema": {}}))
    summary = run_job(job, tmp_path / "out", ScriptedEngine(lambda text: value))
    written = [line for name in ("out", "out.errors.jsonl") for line in (tmp_path / name).read_bytes().splitlines()]
    read = [parse_json(line) for line in written]
    assert len(read) == summary.total == 2
    assert {line["id"] for line in read} == {"a%FF", "b%FF"}


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "empty.json: JSON text"), ("{", "JSON text"), ('{"type": "poem"}', "schema at /type"), ('{"$ref": "http://x.y"}', "not local")],
)  # fmt: skip
def test_a_schema_that_is_none_is_the_callers_fault_and_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "empty.json").write_text(text)
    with pytest.raises(SchemaError, match=rf"schema .*empty\.json: .*{said}|schema .*{said}") as caught:
        job_of(tmp_path, rows_of("a"), schema=str(tmp_path / "empty.json"))
    assert "empty.json" in caught.value.message and caught.value.exit_code == 2


@pytest.mark.parametrize("in_flight", [0, 257])
def test_in_flight_has_bounds(tmp_path: Path, in_flight: int) -> None:
    with pytest.raises(UsageError, match="in_flight"):
        run(tmp_path, rows_of("a"), ScriptedEngine(length), in_flight=in_flight)
