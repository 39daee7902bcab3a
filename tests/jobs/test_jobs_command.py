"""The command extract: stdin, Parquet, dead letters and changed terms from the shell; signals."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from pyarrow import parquet

from toolkit.cli import main
from toolkit.cli.signals import stop_on_signal
from toolkit.jobs.read import open_source
from toolkit.jobs.sources import _unchanged
from toolkit.jobs.spec import make_spec
from toolkit.jobs.terms import lock_terms

SCHEMA = '{"enum": ["yes", "no"]}'
TINY = ("--model", "tiny", "--threads", "1", "--width", "1", "--json")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.json").write_text(SCHEMA)
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    return tmp_path


def test_stdin_becomes_lines_and_cannot_be_resumed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "a"}\n{"text": "b"}\n')))
    assert main(["extract", "-", "--schema", "s.json", "--out", "out", *TINY]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 2
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "a"}\n')))
    assert main(["extract", "-", "--schema", "s.json", "--out", "out", "--resume", *TINY]) == 2
    assert "is a stream, which can be read once" in capsys.readouterr().err


def test_a_job_is_beam_search_and_says_that_it_leaves_the_drafter_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for engine in ("embedded", "embedded:ngram"):
        assert (
            main(["extract", "in.jsonl", "--schema", "s.json", "--out", f"{engine[-5:]}.jsonl", "--engine", engine, *TINY]) == 0
        )
        said.append("the drafter 'ngram' is left out" in capsys.readouterr().err)
    assert said == [False, True]


def test_a_parquet_file_comes_out_and_changed_terms_need_a_word(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = ("extract", "in.jsonl", "--schema", "s.json", "--out", "out.parquet", *TINY)
    assert main([*job]) == 0
    assert parquet.read_table(folder / "out.parquet").num_rows == 2
    assert main([*job, "--resume", "--max-tokens", "9"]) == 2
    assert "job.max_tokens: 256 -> 9" in capsys.readouterr().err
    assert main([*job, "--retry-failed", "--accept-changes", "--max-tokens", "9"]) == 0
    assert json.loads((folder / "out.parquet.job.json").read_text())["changes"][0]["from_index"] == 2


NO_ENGINE = ("--model", "no-such-model")  # whoever loads an engine says so


@pytest.mark.parametrize("name", ["p.csv", "p.json", "p.jsonl.gz", "p.PARQUET", "p.xlsx"])
def test_an_output_of_another_format_is_refused_before_an_engine_is_loaded(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(folder.iterdir())
    assert main(["extract", "in.jsonl", "--schema", "s.json", "--out", name, *NO_ENGINE]) == 2
    err = capsys.readouterr().err
    assert f"output {name} ends in '.{name.rpartition('.')[2]}': a job writes JSON lines" in err and "hint: name p" in err
    assert set(folder.iterdir()) == before
    (folder / "there").write_text("")
    assert main(["extract", "in.jsonl", "--schema", "s.json", "--out", "there", *NO_ENGINE]) == 2
    assert "output there exists" in capsys.readouterr().err


def test_a_resume_that_cannot_be_is_refused_before_an_engine_is_loaded_and_changes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = ("extract", "in.jsonl", "--schema", "s.json", "--out", "out")
    assert main([*job, *TINY]) == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    def refused(*more: str) -> str:
        capsys.readouterr()
        assert main([*job, *NO_ENGINE, *more]) == 2
        return capsys.readouterr().err

    assert "job.max_tokens: 256 -> 9" in refused("--width", "1", "--resume", "--max-tokens", "9")
    assert "no-such-model" in refused("--width", "1", "--resume")  # all the rest is as it was: now the engine is asked
    assert "no-such-model" in refused("--resume", "--accept-changes", "--max-tokens", "9")
    with lock_terms(folder / "out"):
        assert "is being written by another process" in refused("--width", "1", "--resume")
    (folder / "in.jsonl").write_text('{"text": "a"}\n{"text": "c"}\n')
    assert "input.sha256" in refused("--width", "1", "--resume", "--accept-changes")
    (folder / "in.jsonl").write_bytes(before["in.jsonl"])
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_what_a_file_holds_is_asked_again_only_where_it_has_changed(folder: Path) -> None:
    source, asked = open_source(folder / "in.jsonl", make_spec({"schema": {}})), []
    path = folder / "in.jsonl"
    ask = partial(_unchanged, path, lambda: asked.append(1), {})
    ask(), ask()
    assert asked == [1] and source.count() == 2
    path.write_text(path.read_text() + '{"text": "c"}\n')
    ask()
    assert asked == [1, 1] and source.count() == 3


@pytest.mark.parametrize("text", ["0", "257", "many"])
def test_in_flight_is_a_number_or_auto(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["extract", "in.jsonl", "--schema", "s.json", "--out", "out", "--in-flight", text]) == 2
    assert "neither an integer from 1 to 256 nor auto" in capsys.readouterr().err


def test_the_first_signal_asks_and_the_second_interrupts(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with stop_on_signal() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.wait(5)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
                threading.Event().wait(5)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert "once more ends it at once" in capsys.readouterr().err
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stop_on_signal() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert not stop.wait(0.05)
    finally:
        signal.signal(signal.SIGINT, before)
