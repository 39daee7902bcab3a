"""The command extract: stdin, Parquet, dead letters and changed terms from the shell; signals."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from pyarrow import parquet

from toolkit.cli import main
from toolkit.cli.signals import stop_on_signal

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


def test_a_parquet_file_comes_out_and_changed_terms_need_a_word(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = ("extract", "in.jsonl", "--schema", "s.json", "--out", "out.parquet", *TINY)
    assert main([*job]) == 0
    assert parquet.read_table(folder / "out.parquet").num_rows == 2
    assert main([*job, "--resume", "--max-tokens", "9"]) == 2
    assert "job.max_tokens: 256 -> 9" in capsys.readouterr().err
    assert main([*job, "--retry-failed", "--accept-changes", "--max-tokens", "9"]) == 0
    assert json.loads((folder / "out.parquet.job.json").read_text())["changes"][0]["from_index"] == 2


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
