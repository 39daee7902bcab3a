"""What a line holds: spans, reasons to look, pieces; a Parquet file made of lines; the manifest; the journal of second tries."""

from __future__ import annotations

import hashlib
import json
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from tests.jobs.scripted_job_engine import ScriptedEngine
from toolkit.errors import EngineError, InputError, MissingExtraError, UsageError
from toolkit.jobs import terms
from toolkit.jobs.finish import _plain
from toolkit.jobs.lines import whole_lines
from toolkit.jobs.places import errors_path, lines_path, retry_path, terms_path
from toolkit.jobs.retried import fold
from toolkit.jobs.run import Summary, prepare, run_job
from toolkit.jobs.spec import make_spec
from toolkit.jobs.store import Store, open_store
from toolkit.results import json_text
from toolkit.schema import MAX_DEPTH, parse_json

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "n": {"type": ["integer", "null"]}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["name"],
}  # fmt: skip


def names(text: str) -> dict[str, Any]:
    """A model that takes the first word, counts, and invents a tag."""
    words = text.split()
    return {"name": words[0], "n": len(words), "tags": [*words[1:2], "invented"]}


def run(folder: Path, texts: list[str], *, out: str = "out", answer: Any = names, **options: Any) -> Summary:
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    job = prepare(folder / "in.jsonl", make_spec({"schema": SCHEMA, **options}))
    return run_job(job, folder / out, ScriptedEngine(answer), resume=True)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- spans and doubts --------------------------------------------------------------------------------------------------


def test_a_line_has_the_spans_of_its_strings_and_of_numbers_that_are_found(tmp_path: Path) -> None:
    run(tmp_path, ["Ann has 3"])
    (line,) = lines(tmp_path / "out")
    assert line["spans"] == {"/name": [0, 3], "/n": [8, 9], "/tags/0": [4, 7], "/tags/1": None}
    assert line["span_detail"]["/name"] == {"method": "exact", "distance": 0.0} and "/tags/1" not in line["span_detail"]
    assert (line["needs_review"], line["review_reasons"]) == (False, [])


@pytest.mark.parametrize(
    ("options", "review", "failed"),
    [
        ({"ground": "off"}, 0, 0),
        ({"ground": "report"}, 0, 0),
        ({"ground": "review"}, 1, 0),
        ({"ground": "review", "ground_free": ("/tags/*",)}, 0, 0),
        ({"ground": "error"}, 0, 1),
        ({"review_below": {"/n": 0.6}}, 1, 0),  # the scripted engine is 0.5 sure of it
        ({"review_below": {"/n": 0.4}}, 0, 0),
    ],
)
def test_what_is_not_in_the_text_or_not_sure_is_what_the_job_says_it_is(
    tmp_path: Path, options: dict[str, Any], review: int, failed: int
) -> None:
    summary = run(tmp_path, ["Ann has 3"], **options)
    assert (summary.needs_review, summary.failed) == (review, failed)
    for line in lines(tmp_path / "out"):
        assert line["needs_review"] is bool(review) and ("spans" in line) == (options.get("ground") != "off")
    for line in lines(errors_path(tmp_path / "out")):
        assert line["stage"] == "ground" and "/tags/1" in line["reason"]
    assert run(tmp_path, ["Ann has 3"], **options).needs_review == review  # a resume counts them again


ODD = st.text(alphabet='a\ud800é\u2028"\\', max_size=4)
NUMBERS = st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(st.none() | st.booleans() | NUMBERS | ODD, lambda each: st.lists(each, max_size=3) | st.dictionaries(ODD, each, max_size=3), max_leaves=8)  # fmt: skip


@given(VALUES)
def test_what_a_look_finds_readable_is_what_the_strict_reader_reads(value: Any) -> None:
    if _plain(value, MAX_DEPTH - 2):
        assert parse_json(json_text(value)) == value


@pytest.mark.parametrize("deep", [MAX_DEPTH - 3, MAX_DEPTH - 2, MAX_DEPTH, 5000])
def test_a_look_finds_nothing_readable_that_is_too_deep_for_the_reader(deep: int) -> None:
    value: Any = 1
    for _ in range(deep):
        value = [value]
    assert _plain(value, MAX_DEPTH - 2) == (deep <= MAX_DEPTH - 2)


# --- pieces ------------------------------------------------------------------------------------------------------------


def test_a_long_text_is_read_in_pieces_and_every_value_knows_its_own(tmp_path: Path) -> None:
    run(tmp_path, ["Ann sees Bob now", "Zoe"], chunk_tokens=9, merge={"/name": "last", "/n": "min"})
    line, short = lines(tmp_path / "out")
    assert [(each["start"], each["end"], each["value"]["name"]) for each in line["chunks"]] == [(0, 9, "Ann"), (9, 16, "Bob")]
    assert line["value"] == {"name": "Bob", "n": 2, "tags": ["sees", "invented", "now"]}
    assert line["provenance"] == {"/name": 1, "/n": 0, "/tags/0": 0, "/tags/1": 0, "/tags/2": 1}
    assert line["spans"]["/name"] == [9, 12] and line["spans"]["/tags/1"] is None
    assert line["score"] is None and line["valid"] is True and line["alternatives"] == []
    assert line["usage"]["input_tokens"] == 20 and line["confidence"] == {"/n": 0.5}
    assert "chunks" not in short and short["value"]["name"] == "Zoe"


def test_pieces_that_merge_to_what_the_schema_forbids_fail_at_that_stage(tmp_path: Path) -> None:
    strict = {**SCHEMA, "properties": {**SCHEMA["properties"], "tags": {"type": "array", "maxItems": 2}}}
    summary = run(tmp_path, ["aaa bbb ccc ddd eee"], chunk_tokens=8, schema=strict)
    (line,) = lines(errors_path(tmp_path / "out"))
    assert summary.failures == {"merge": 1} and "/tags" in line["reason"] and "another policy" in line["reason"]


# --- Parquet -----------------------------------------------------------------------------------------------------------


def test_a_parquet_output_holds_what_the_lines_hold_and_is_made_again_after_a_resume(tmp_path: Path) -> None:
    run(tmp_path, ["Ann has 3", "Bob", "Cy is"], out="out.parquet")
    kept = lines(lines_path(tmp_path / "out.parquet"))
    rows = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [json.loads(row["value"]) for row in rows] == [line["value"] for line in kept]
    assert [(row["index"], row["id"], row["value.name"], row["value.n"]) for row in rows] == [
        (0, "line-1", "Ann", 3), (1, "line-2", "Bob", 1), (2, "line-3", "Cy", 2),
    ]  # fmt: skip
    assert json.loads(rows[0]["spans"]) == kept[0]["spans"] and json.loads(rows[0]["value.tags"]) == ["has", "invented"]
    (tmp_path / "out.parquet").unlink()
    assert run(tmp_path, ["Ann has 3", "Bob", "Cy is"], out="out.parquet").resumed_at == 3
    assert parquet.read_table(tmp_path / "out.parquet").num_rows == 3


def test_an_integer_that_parquet_cannot_hold_is_an_error_that_names_the_record(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line-1: n = 9223372036854775808 has more than 64 bits"):
        run(tmp_path, ["a"], out="out.parquet", answer=lambda text: {"name": "a", "n": 2**63})
    assert lines(lines_path(tmp_path / "out.parquet"))[0]["value"]["n"] == 2**63


def test_without_pyarrow_a_parquet_output_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="pyarrow"):
        run(tmp_path, ["a"], out="out.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


# --- the manifest ------------------------------------------------------------------------------------------------------


def test_the_manifest_says_what_the_job_was_and_what_came_of_it(tmp_path: Path) -> None:
    run(tmp_path, ["Ann has 3", " "])
    manifest = json.loads((tmp_path / "out.manifest.json").read_text())
    assert manifest["state"] == "complete"
    assert manifest["counts"] == {"records": 2, "done": 2, "valid": 1, "failed": 1, "failures": {"read": 1}, "needs_review": 0}
    assert manifest["input"]["path"] == str(tmp_path / "in.jsonl") and len(manifest["input"]["sha256"]) == 64
    assert len(manifest["schema_sha256"]) == len(manifest["prompt_sha256"]) == 64
    assert manifest["engine"]["model"] == "model-1" and {"python", "sgl-toolkit"} <= manifest["versions"].keys()
    assert manifest["usage"]["input_tokens"] == 10


def test_the_manifest_names_the_job_file_with_its_hash(tmp_path: Path) -> None:
    run(tmp_path, ["a"])
    (tmp_path / "job.toml").write_bytes(b"width = 4\n")
    job = prepare(tmp_path / "in.jsonl", make_spec({"schema": SCHEMA}))
    run_job(job, tmp_path / "out", ScriptedEngine(names), resume=True, job_file=tmp_path / "job.toml")
    named = json.loads((tmp_path / "out.manifest.json").read_text())["job_file"]
    assert named == {"path": str(tmp_path / "job.toml"), "sha256": hashlib.sha256(b"width = 4\n").hexdigest()}


@pytest.mark.parametrize("text", ["", "[]", '{"timing": 1, "usage": {}}', "{" * 5000])
def test_a_damaged_manifest_costs_the_times_of_earlier_runs_and_that_is_said(tmp_path: Path, text: str) -> None:
    run(tmp_path, ["a"])
    (tmp_path / "out.manifest.json").write_text(text)
    job = prepare(tmp_path / "in.jsonl", make_spec({"schema": SCHEMA}))
    notes: list[str] = []
    run_job(job, tmp_path / "out", ScriptedEngine(names), resume=True, on_note=notes.append)
    assert len(notes) == 1 and "the times of earlier runs are lost" in notes[0]
    assert json.loads((tmp_path / "out.manifest.json").read_text())["timing"]["runs"] == 1


# --- second tries ------------------------------------------------------------------------------------------------------


def filled(out: Path) -> Store:
    store = open_store(out, {"input": {}}, resume=False)
    for index in range(6):
        (store.fail if index % 2 else store.add)({"id": str(index), **({"stage": "decode"} if index % 2 else {})})
    return store


def state(out: Path) -> list[list[dict[str, Any]]]:
    return [lines(path) for path in (out, errors_path(out))]


def test_a_fold_stopped_at_any_moment_is_done_again_to_the_same_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with filled(tmp_path / "out") as store, store.retried() as retried:
        retried.put(1, {"id": "1", "now": "good"})
        retried.put(5, {"id": "5", "stage": "validate"})
    for path in tmp_path.iterdir():
        shutil.copy(path, tmp_path / path.name.replace("out", "whole"))
    fold(tmp_path / "whole")
    wanted = state(tmp_path / "whole")
    assert [each["index"] for each in wanted[0]] == [0, 1, 2, 4] and [each["index"] for each in wanted[1]] == [3, 5]
    assert [each["stage"] for each in wanted[1]] == ["decode", "validate"]

    class StopError(Exception):
        pass

    replace, unlink = Path.replace, Path.unlink
    for stop_at in count():
        for path in tmp_path.glob("whole*"):
            unlink(path)
        steps = iter(range(99))

        def step(call: Any, *arguments: Any, limit: int = stop_at, taken: Any = steps) -> Any:
            if next(taken) == limit:
                raise StopError
            return call(*arguments)

        for path in tmp_path.glob("out*"):
            shutil.copy(path, tmp_path / path.name.replace("out", "whole"))
        monkeypatch.setattr(Path, "replace", lambda *given: step(replace, *given))
        monkeypatch.setattr(Path, "unlink", lambda *given: step(unlink, *given))
        try:
            fold(tmp_path / "whole")
        except StopError:
            stopped = True
        else:
            stopped = False
        monkeypatch.undo()
        with open_store(tmp_path / "whole", {"input": {}}, resume=True) as again:
            assert (again.position, again.failures) == (6, {"decode": 1, "validate": 1})
        assert state(tmp_path / "whole") == wanted and not retry_path(tmp_path / "whole").exists()
        if not stopped:
            assert stop_at == 3  # two files replaced, the journal deleted
            return


def test_a_full_disk_during_a_fold_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with filled(tmp_path / "out") as store, store.retried() as retried:
        retried.put(3, {"id": "3"})
    before = state(tmp_path / "out")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(EngineError, match="No space left on device"):
        fold(tmp_path / "out")
    assert state(tmp_path / "out") == before and not list(tmp_path.glob("*.new"))


def test_a_tail_of_zero_bytes_is_cut_as_a_torn_line_is(tmp_path: Path) -> None:
    filled(tmp_path / "out").close()
    with (tmp_path / "out").open("ab") as file:
        file.write(b'{"id":"6"' + bytes(30) + b'"index":6}\n')
    assert len(list(whole_lines(tmp_path / "out"))) == 3
    with open_store(tmp_path / "out", {"input": {}}, resume=True) as store:
        assert store.position == 6


def test_the_same_index_in_both_files_is_no_jobs_work(tmp_path: Path) -> None:
    filled(tmp_path / "out").close()
    errors_path(tmp_path / "out").write_text('{"id":"0","stage":"read","index":0}\n')
    with pytest.raises(UsageError, match="index 0 is in"):
        open_store(tmp_path / "out", {"input": {}}, resume=True)


def test_the_lock_moves_with_the_terms_that_take_the_place_of_the_old(tmp_path: Path) -> None:
    filled(tmp_path / "out").close()
    changed = {"input": {}, "job": {"width": 2}}
    with open_store(tmp_path / "out", changed, resume=True, accept=True):
        with pytest.raises(UsageError, match="being written by another"):
            terms.lock_terms(tmp_path / "out")
        kept = json.loads(terms_path(tmp_path / "out").read_text())
    assert kept["job"] == {"width": 2} and kept["changes"][0]["from_index"] == 6
