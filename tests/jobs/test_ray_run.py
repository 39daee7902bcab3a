"""Jobs on Ray Data, on a real cluster of this machine: the same lines as here, whatever happens to a worker."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.remote.stub_server import Stub, listening
from tests.text.test_tokenizer import tokenizer_json, write
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.errors import EngineError, MissingExtraError, ToolkitError, UnsupportedError, UsageError
from toolkit.jobs import ray_run, run
from toolkit.jobs.ray_run import RayPool
from toolkit.jobs.spec import make_spec
from toolkit.text.tokenizer import ByteTokenizer, byte_map, load_tokenizer

ROOT = Path(__file__).parent.parent.parent
RECORDS, FEW = 80, 24
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "y", "z"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
LONG = {
    "type": "object",
    "properties": {"a": {"type": "string", "pattern": "^[a-z]{12,16}$"}, "b": {"enum": ["x", "y", "z"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}  # what the tiny model needs some time for, so that a kill comes in mid-job
VARIES = ("timing", "usage")  # what a record costs depends on whom it was decoded with
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'ray[data]'")


# --- what needs no cluster --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"address": "ray://head:10001"}, UnsupportedError, "ray job submit"),
        ({"address": "head"}, UsageError, "host:port"),
        ({"address": "head:99999"}, UsageError, "host:port"),
        ({"actors": 0}, UsageError, "from 1 to"),
        ({"actors": 10**6}, UsageError, "from 1 to"),
        (
            {"options": {"tokenizer": ByteTokenizer()}},
            UnsupportedError,
            "tokenizer is a ByteTokenizer.*a folder or a stored model",
        ),
    ],
)
def test_what_a_pool_cannot_be_is_refused(options: dict[str, Any], kind: type[ToolkitError], said: str) -> None:
    with pytest.raises(kind, match=said):
        RayPool(**options)


@needs_ray
def test_where_no_cluster_listens_it_is_said_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(EngineError, match=f"no Ray cluster at {address}"), ray_run._cluster(address):
        pass


def test_without_ray_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"sgl-toolkit\[ray\]"):
        ray_run._ray()


def test_an_actors_model_must_be_the_callers(tmp_path: Path) -> None:
    prepare(tmp_path)
    job = run.prepare(tmp_path / "in.jsonl", make_spec({"schema": SCHEMA, "width": 2}))
    records = list(job.source)[:3]
    worker = ray_run._Worker(job, "embedded", {"model": "tiny", "threads": 1}, "tiny", 2, "out")
    try:
        (packed,) = worker({"records": [pickle.dumps(records)]})["outcomes"]
        assert [outcome.line["id"] for outcome in pickle.loads(packed)] == ["r0", "r1", "r2"]
    finally:
        worker._engine.close()
    other = ray_run._Worker(job, "embedded", {"model": "tiny", "threads": 1}, "another", 2, "out")
    answer = other({"records": [pickle.dumps(records)]})
    with pytest.raises(EngineError, match="put the same model on every node"):
        ray_run._raise(json.loads(answer["error"][0]))
    missing = ray_run._Worker(job, "embedded", {"model": "no-such-model"}, "tiny", 2, "out")
    with pytest.raises(UsageError, match="no-such-model"):
        ray_run._raise(json.loads(missing({"records": [pickle.dumps(records)]})["error"][0]))


@needs_ray
def test_the_input_is_found_from_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    job = run.prepare(Path("in.jsonl"), make_spec({"schema": SCHEMA}))
    here = list(job.source)
    moved = pickle.loads(ray_run._ray().cloudpickle.dumps(ray_run._anywhere(job)))
    monkeypatch.chdir("/")
    assert list(moved.source) == here and len(here) == RECORDS


def test_what_was_done_before_an_engine_stopped_is_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopping(*given: Any) -> Iterator[str]:
        yield "first"
        raise EngineError("the engine stopped running", hint="--resume goes on")

    monkeypatch.setattr(ray_run, "outcomes_of", stopping)
    monkeypatch.setattr(ray_run._Worker, "_engine", None)
    answer = ray_run._Worker(None, "", {}, "", 1, "")({"records": [pickle.dumps([])]})  # type: ignore[arg-type]
    assert pickle.loads(answer["outcomes"][0]) == ["first"]
    with pytest.raises(EngineError, match="stopped running"):
        ray_run._raise(json.loads(answer["error"][0]))


# --- on a cluster -----------------------------------------------------------------------------------------------------


def prepare(folder: Path, schema: Any = SCHEMA, records: int = RECORDS) -> None:
    (folder / "s.json").write_text(json.dumps(schema))
    rows = [json.dumps({"id": f"r{index}", "text": f"text number {index}"}) for index in range(records)]
    rows[7] = "not json"
    rows[20] = json.dumps({"id": "long", "text": "x" * 20_000})  # longer than the tiny model's context
    (folder / "in.jsonl").write_text("\n".join(rows))


def content(folder: Path, out: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for path in (out, f"{out}.errors.jsonl") for line in (folder / path).read_text().splitlines()]
    for line in lines:
        if "reason" in line:
            line["reason"] = re.sub(r"\S*:", "OUT:", line["reason"], count=1)  # the request's name
    return [{name: value for name, value in line.items() if name not in VARIES} for line in lines]


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """The environment of Ray programs, and a cluster of two CPUs on this machine at RAY_ADDRESS: `ray start --head`, once for all."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:  # short: sockets lie in it
        token = Path(folder, "token")
        token.write_text(secrets.token_hex(32))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        own = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_TMPDIR": folder,
            "RAY_ADDRESS": f"127.0.0.1:{port}",
        }
        found = {**os.environ, **own, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--port", port]
        command += ["--num-cpus", "2", "--include-dashboard", "false"]
        try:
            started = subprocess.run(command, env=found, capture_output=True, text=True, timeout=90)
            assert started.returncode == 0, started.stderr
            yield found
        finally:
            for process in workers(found["RAY_ADDRESS"], ""):
                os.kill(process, signal.SIGKILL)


def workers(address: str, name: str) -> list[int]:
    """Processes of the cluster at this address with this in their title ("" = all of them)."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            title, state = (place / "cmdline").read_bytes(), (place / "environ").read_bytes()
        except OSError:
            continue
        if f"RAY_ADDRESS={address}".encode() in state and b"-m\0toolkit" not in title and name.encode() in title:
            found.append(int(place.name))
    return [number for number in found if number != os.getpid()]


@needs_ray
@pytest.mark.slow
def test_a_cluster_gives_the_lines_of_the_local_run_and_a_worker_killed_in_mid_job_loses_nothing(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    prepare(tmp_path, LONG)
    with EmbeddedEngine(model="tiny", threads=1) as engine:
        job = run.prepare(tmp_path / "in.jsonl", make_spec({"schema": LONG, "width": 4, "max_tokens": 80}))
        summary = run.run_job(job, tmp_path / "here", engine, in_flight=2)
    assert (summary.valid, summary.failures) == (RECORDS - 2, {"read": 1, "prompt": 1})

    command = [sys.executable, "-m", "toolkit", "extract", "in.jsonl", "--schema", "s.json", "--out", "there", "--json"]
    command += ["--model", "tiny", "--threads", "1", "--width", "4", "--max-tokens", "80", "--in-flight", "2"]
    command += ["--ray", environment["RAY_ADDRESS"], "--ray-actors", "2"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes) as process:
        seen: set[int] = set()
        deadline = time.monotonic() + 100
        while not written(tmp_path / "there"):
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            if len(seen) < 2:
                seen |= set(workers(environment["RAY_ADDRESS"], "ray::MapWorker"))
            time.sleep(0.005)
        os.kill(min(seen), signal.SIGKILL)
        at = written(tmp_path / "there")
        out, err = process.communicate(timeout=150)
    assert len(seen) == 2 and 0 < at < RECORDS / 2, (seen, at)
    assert process.returncode == 1, err  # two records cannot be done
    assert json.loads(out.splitlines()[-1])["valid"] == RECORDS - 2
    assert content(tmp_path, "there") == content(tmp_path, "here")
    assert [line["index"] for line in content(tmp_path, "there")] == [
        *(index for index in range(RECORDS) if index not in (7, 20)), 7, 20,
    ]  # fmt: skip


def written(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def byte_tokenizer(folder: Path) -> Path:
    """The tiny model's tokenizer as a folder that actors can read."""
    folder.mkdir()
    made, plain = tokenizer_json(vocab={char: i for i, char in enumerate(byte_map())}, merges=[]), ByteTokenizer.CONTROL
    (one, *_) = made["added_tokens"]
    made["added_tokens"] = [{**one, "id": 256 + i, "content": name} for i, name in enumerate(plain)]
    settings = {"eos_token": plain[0], "chat_template": ByteTokenizer.TEMPLATE}
    return write(folder, made, tokenizer_config=settings, config={"vocab_size": 261})


SERVED = """
import os, sys
from pathlib import Path
import ray
from toolkit import UsageError, open_engine
from toolkit.jobs.ray_run import RayPool
from toolkit.jobs.run import prepare, run_job
from toolkit.jobs.spec import make_spec

urls, options = sys.argv[1], {"tokenizer": sys.argv[2]}
job = prepare(Path("in.jsonl"), make_spec({"schema": "s.json", "width": 2, "system": ""}))
engine = open_engine(urls, **options)
run_job(job, Path("here"), engine)
try:
    run_job(job, Path("there"), engine, outcomes=RayPool("local", "embedded", {"model": "no-such-model"}, 1))
except UsageError as error:
    print(error, ray.is_initialized())
run_job(job, Path("there"), engine, resume=True, outcomes=RayPool(os.environ["RAY_ADDRESS"], urls, options, 2))
"""


@needs_ray
@pytest.mark.slow
def test_actors_drive_servers_and_one_that_cannot_start_ends_the_job_in_its_own_words_and_a_resume_goes_on(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    prepare(tmp_path, {"enum": ["yes", "no"]}, FEW)
    folder = byte_tokenizer(tmp_path / "tokenizer")
    left, right = (Stub(tokenizer=load_tokenizer(folder)) for _ in range(2))
    with listening(left), listening(right):
        command = [sys.executable, "-c", SERVED, f"{left.url},{right.url}", str(folder)]
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=150)
    assert ran.returncode == 0, ran.stderr
    assert "no-such-model" in ran.stdout and ran.stdout.endswith("False\n")  # its own cluster was there for that job only
    assert content(tmp_path, "there") == content(tmp_path, "here")
    assert written(tmp_path / "there") == FEW - 2 and left.bodies and right.bodies
