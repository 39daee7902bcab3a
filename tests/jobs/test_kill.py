"""A job that is killed, again and again, ends with the output of one that was not; a full disk and a second process are errors."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.null_job import run as run_null
from toolkit.jobs.store import open_store

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


def content(folder: Path, out: str) -> list[tuple[Any, ...]]:
    lines = [json.loads(line) for path in (out, f"{out}.errors.jsonl") for line in (folder / path).read_text().splitlines()]
    return [
        (
            line["index"],
            line["id"],
            line.get("value"),
            line.get("stage"),
            line.get("reason", "").replace(str(folder / out), "OUT"),
        )
        for line in lines
    ]


@pytest.mark.parametrize(
    ("records", "kills"), [(80, 4), pytest.param(2000, 50, marks=pytest.mark.slow)], ids=["a few", "fifty over two thousand"]
)
def test_a_job_killed_at_random_moments_gives_what_an_uninterrupted_one_gives(tmp_path: Path, records: int, kills: int) -> None:
    command = [sys.executable, "-m", "tests.jobs.kill_harness", str(tmp_path), str(records), str(kills), "20261130"]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(told.stdout)["kills"] == kills
    assert content(tmp_path, "killed") == content(tmp_path, "whole")
    assert sorted(index for index, *_ in content(tmp_path, "killed")) == list(range(records))
    assert {path.name for path in tmp_path.glob("killed*")} == {
        path.name.replace("whole", "killed") for path in tmp_path.glob("whole*")
    }


def test_two_processes_on_one_job_refuse_each_other(tmp_path: Path) -> None:
    prepare(tmp_path)
    job = open_store(tmp_path / "out", {"input": {}}, resume=False)
    try:
        process = start(tmp_path, "out", "--resume")
        _, err = process.communicate()
    finally:
        job.close()
    assert process.returncode == 2
    assert "is being written by another process" in err and "Traceback" not in err


def test_a_full_disk_ends_the_job_cleanly_and_a_resume_loses_nothing(tmp_path: Path) -> None:
    rows = "".join(json.dumps({"text": "x" * 50}) + "\n" for _ in range(30))
    (tmp_path / "in.jsonl").write_text(rows)
    code = (
        "import resource, sys; from tests.jobs.null_job import run; resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000));"
        "run(sys.argv[1], resume=False)"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert "out cannot be written: File too large (--resume goes on)" in ended.stderr.splitlines()[-1]
    before = written(tmp_path / "out")
    assert 0 < before < 30
    assert run_null(str(tmp_path), resume=True).resumed_at == before
    assert [index for index, *_ in content(tmp_path, "out")] == list(range(30))


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


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_records(tmp_path: Path) -> None:
    """`toolkit bench jobs --part memory` does the same for 100,000; /proc is not needed here."""
    with (tmp_path / "in.jsonl").open("w") as file:
        file.writelines(json.dumps({"id": f"r{i}", "text": f"text {i} " + "lorem ipsum " * 40}) + "\n" for i in range(10_000))
    command = [sys.executable, "-m", "tests.jobs.null_job", str(tmp_path)]
    done, grown_mib, _ = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert int(done) == 10_000 and float(grown_mib) < 100
