"""A job that is killed, again and again, ends with the output of one that was not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

RECORDS = 40
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "y", "z"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def prepare(folder: Path) -> None:
    (folder / "s.json").write_text(json.dumps(SCHEMA))
    rows = [json.dumps({"id": f"r{index}", "text": f"text number {index}"}) for index in range(RECORDS)]
    rows[7] = "not json"
    rows[20] = json.dumps({"id": "long", "text": "x" * 20_000})  # longer than the tiny model's context
    (folder / "in.jsonl").write_text("\n".join(rows))


def start(folder: Path, out: str, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "toolkit", "extract", "in.jsonl", "--schema", "s.json", "--out", out, *more]
    options = ["--model", "tiny", "--threads", "1", "--width", "2", "--in-flight", "3", "--json"]
    return subprocess.Popen([*command, *options], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def written(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_after(folder: Path, out: str, lines: int) -> None:
    """Start or resume, and SIGKILL as soon as `lines` lines are written."""
    process = start(folder, out, "--resume")
    while written(folder / out) < lines and process.poll() is None:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


def content(folder: Path, out: str) -> list[tuple[Any, ...]]:
    lines = [json.loads(line) for path in (out, f"{out}.errors.jsonl") for line in (folder / path).read_text().splitlines()]
    return [
        (line["index"], line["id"], line.get("value"), line.get("stage"), line.get("reason", "").replace(out, "OUT"))
        for line in lines
    ]


@pytest.mark.slow
def test_a_killed_job_loses_and_repeats_nothing(tmp_path: Path) -> None:
    prepare(tmp_path)
    whole = start(tmp_path, "whole")
    summary = json.loads(whole.communicate()[0].splitlines()[-1])
    assert whole.returncode == 1  # two records cannot be done
    assert (summary["records"], summary["valid"], summary["failures"]) == (RECORDS, RECORDS - 2, {"read": 1, "prompt": 1})

    for lines in (1, 9, 25):
        kill_after(tmp_path, "killed", lines)
    with (tmp_path / "killed").open("ab") as file:
        file.write(b'{"id": "torn')
    rest = start(tmp_path, "killed", "--resume")
    summary = json.loads(rest.communicate()[0].splitlines()[-1])
    assert rest.returncode == 1
    assert 0 < summary["resumed_at"] < RECORDS and summary["done"] == RECORDS

    assert content(tmp_path, "killed") == content(tmp_path, "whole")
    assert sorted(index for index, *_ in content(tmp_path, "killed")) == list(range(RECORDS))


@pytest.mark.slow
@pytest.mark.usefixtures("shell_signals")
def test_an_interrupted_job_says_how_to_go_on(tmp_path: Path) -> None:
    prepare(tmp_path)
    process = start(tmp_path, "out")
    while written(tmp_path / "out") < 3 and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert "--resume goes on" in err and "Traceback" not in err
    assert [index for index, *_ in content(tmp_path, "out")][:3] == [0, 1, 2]


def test_without_resume_an_output_is_refused_before_an_engine_is_loaded(tmp_path: Path) -> None:
    prepare(tmp_path)
    (tmp_path / "there").write_text("")
    process = start(tmp_path, "there")
    _, err = process.communicate()
    assert process.returncode == 2
    assert "--resume" in err
