"""Commands review, stats, schema and explain scale: streams, exit codes, JSON."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.finished import finished
from toolkit.cli import main
from toolkit.cli.review import bars
from toolkit.cli.scale import hours

Run = Callable[..., tuple[int, str, str]]
THING = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "size": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2, "uniqueItems": True}},
    "required": ["ok", "size"],
    "additionalProperties": False,
}  # fmt: skip


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "thing.json").write_text(json.dumps(THING))

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(arguments)
        return code, *capsys.readouterr()

    return call


def last(text: str) -> Any:
    return json.loads(text.splitlines()[-1])


def test_review_writes_a_page_beside_the_output_and_prints_its_name(run: Run, tmp_path: Path) -> None:
    finished(tmp_path, {"Mia": {"n": "Mia"}, "nobody": None})
    assert run("review", "out.jsonl") == (0, "out.jsonl.html\n", "2 of 2 records in out.jsonl.html\n")
    assert (tmp_path / "out.jsonl.html").read_text().startswith("<!doctype html>")
    code, out, _ = run("review", "out.jsonl", "--page", "p.html", "--only", "failed", "--json")
    assert (code, last(out)["shown"], last(out)["page"]) == (0, 1, "p.html")
    (tmp_path / "out.jsonl.in.jsonl").unlink()
    assert "note: without texts" in run("review", "out.jsonl")[2]


def test_stats_are_tables_or_one_object(run: Run, tmp_path: Path) -> None:
    finished(tmp_path, {"Mia": {"n": "Mia", "[red]": 1}, "nobody": None, "Ada": {"n": "\x1b[2J\u202e"}})
    code, out, _ = run("stats", "out.jsonl")
    assert code == 0 and "3 records: 2 valid, 1 failed" in out and "/[red]" in out
    assert "\x1b[2J" not in out and "\u202e" not in out
    code, out, _ = run("stats", "out.jsonl", "--json")
    assert code == 0 and last(out)["fields"]["/n"]["present"] == 2


@pytest.mark.parametrize("command", ["review", "stats"])
def test_an_output_that_is_not_there_is_exit_code_2(run: Run, command: str) -> None:
    code, out, err = run(command, "nothing.jsonl")
    assert (code, out) == (2, "") and "does not exist" in err


def test_infer_prints_a_schema_that_lint_has_nothing_against(run: Run, tmp_path: Path) -> None:
    (tmp_path / "v.jsonl").write_text('{"value": {"n": 1}}\n\n{"value": {"n": 2, "m": "x"}}\n')
    code, out, _ = run("schema", "infer", "v.jsonl", "--field", "value")
    assert code == 0 and json.loads(out)["required"] == ["n"]
    (tmp_path / "s.json").write_text(out)
    assert run("schema", "lint", "s.json")[0] == 0
    assert last(run("schema", "infer", "v.jsonl", "--json")[1])["examples"] == 2


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [('{"a": 1}\n{"a"\n', 2, "v.jsonl:2: "), ("", 2, "v.jsonl: "), ("[1", 2, "v.jsonl: "), ('{"a": 1}', 2, "no field 'value': it has a")],
)  # fmt: skip
def test_examples_that_cannot_be_read_are_named(run: Run, tmp_path: Path, text: str, code: int, said: str) -> None:
    (tmp_path / "v.jsonl").write_text(text)
    got, out, err = run("schema", "infer", "v.jsonl", "--field", "value")
    assert (got, out) == (code, "") and said in err


def test_lint_is_a_verdict(run: Run) -> None:
    code, out, err = run("schema", "lint", "thing.json")
    assert code == 1 and "warning /properties/size: uniqueItems: no mask enforces it" in out and "1 warnings" in err
    code, out, _ = run("schema", "lint", "thing.json", "--json")
    assert (code, out.count("\n"), last(out)["warnings"]) == (1, 1, 1)
    assert last(out)["findings"][0]["path"] == "/properties/size"


def test_show_says_what_only_the_validator_decides(run: Run) -> None:
    code, out, _ = run("schema", "show", "thing.json")
    assert code == 0 and "maxItems 2" in out
    rows = {row["place"]: row for row in last(run("schema", "show", "thing.json", "--json")[1])["rows"]}
    assert rows["/size"]["validator_only"] == ["uniqueItems"] and rows["/ok"]["validator_only"] == []
    assert rows["/size/*"]["rules"] == "enum [1,2]"


def test_explain_scale_prints_both_amounts(run: Run) -> None:
    code, out, _ = run("explain", "scale", "--seconds-per-record", "3.6", "--efficiency", "1", "--days", "10")
    assert code == 0 and "1,000,000 records: 41.7 days of one machine" in out and "1,000,000,000 records" in out
    code, out, _ = run("explain", "scale", "--seconds-per-record", "3.6", "--json")
    assert code == 0 and [each["records"] for each in last(out)["amounts"]] == [10**6, 10**9]
    assert run("explain", "scale", "--seconds-per-record", "0")[0] == 2


def test_ray_options_go_together(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    job = ("extract", "in.jsonl", "--schema", "thing.json", "--out", "o", "--model", "tiny")
    code, _, err = run(*job, "--ray-actors", "2")
    assert code == 2 and "--ray-actors goes with --ray" in err
    code, _, err = run(*job, "--ray", "ray://head:10001")
    assert code == 2 and "ray job submit" in err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "a"}')))
    code, _, err = run("extract", "-", *job[2:], "--ray", "local")
    assert code == 2 and "reads a file or a folder" in err
    assert not (tmp_path / "o").exists()


def test_actors_get_the_options_that_were_typed_and_a_folder_by_its_whole_path(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "model").mkdir()
    found = []
    monkeypatch.setattr("toolkit.jobs.ray_run.RayPool.check", lambda pool, job: found.append(pool) or 1 / 0)
    job = ("extract", "in.jsonl", "--schema", "thing.json", "--out", "o", "--ray", "auto")
    run(*job, "--model", "model", "--threads", "3", "--ray-actors", "4")
    run(*job, "--engine", "http://a:1,http://b:2", "--timeout", "5", "--tokenizer", "smollm2")
    here, there = found
    assert (here.address, here.engine, here.actors) == ("auto", "embedded", 4)
    assert here.options.items() >= {"model": str(tmp_path / "model"), "threads": 3, "dtype": "float32"}.items()
    assert (there.engine, there.options) == ("http://a:1,http://b:2", {"timeout_s": 5.0, "tokenizer": "smollm2"})


def test_a_histogram_is_a_bar_a_bin() -> None:
    assert bars([0, 1, 4, 8]) == " ▁▄█"
    assert bars([0, 0]) == "  " and bars([1, 1000]) == "▁█"


@pytest.mark.parametrize(("amount", "said"), [(20_000, "2.3 years"), (60, "2.5 days"), (5, "5.0 hours"), (0.5, "30.0 minutes"), (0.001, "3.6 seconds")])  # fmt: skip
def test_a_length_of_time_reads_in_its_own_unit(amount: float, said: str) -> None:
    assert hours(amount) == said
