"""Servers are waited for, explained when they die and never left behind: with a script in SGLang's place."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from toolkit.errors import EngineError, MissingExtraError, UsageError
from toolkit.lang import launch as launching
from toolkit.lang.launch import Launch, free_port
from toolkit.lang.serve import run_server
from toolkit.lang.supervise import KEPT_LINES, LINE_BYTES, Supervised

FAKE = Path(__file__).parent / "fake_server.py"


def fake(*traits: str, port: int | None = None) -> Launch:
    port = port or free_port()
    command = (sys.executable, str(FAKE), str(port), *traits)
    return Launch(command=command, env={}, model="folder", device="cpu", host="127.0.0.1", port=port)


def child_in(lines: list[str]) -> int:
    return next(int(line.split()[1]) for line in lines if line.startswith("child "))


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(*pids: int) -> bool:
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(alive(pid) for pid in pids)


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    yield
    assert [line for line in map(_ours, psutil.process_iter()) if line] == []


def _ours(process: psutil.Process) -> list[str]:
    """The command line of a stand-in that these tests started; another worker's tests may have theirs at the same time."""
    worker = "PYTEST_XDIST_WORKER"
    try:
        line: list[str] = process.cmdline()
        ours = str(FAKE) in line and process.environ().get(worker) == os.environ.get(worker) and alive(process.pid)
    except psutil.Error:
        return []
    return line if ours else []


def test_a_server_is_given_out_once_it_is_healthy_and_ended_with_all_it_started() -> None:
    reached: list[str] = []
    with run_server(fake("slow"), deadline=60, progress=lambda _, what: reached.append(what)) as server:
        assert server.url == f"http://127.0.0.1:{server.plan.port}" and server.model == "folder"
        child = child_in(server.log())
        assert set(server.pids()) == {server.pid, child}
        server.wait(0.0)
    assert gone(server.pid, child)
    assert reached == ["arguments accepted"]
    assert server.pids() == ()


def test_a_block_that_raises_ends_the_server_too() -> None:
    with pytest.raises(KeyboardInterrupt), run_server(fake(), deadline=60) as server:
        child = child_in(server.log())
        raise KeyboardInterrupt
    assert gone(server.pid, child)


def test_what_does_not_hear_sigterm_is_killed_after_the_grace_period() -> None:
    process = Supervised(fake("linger").command, os.environ, grace=0.3)
    deadline = time.monotonic() + 30
    while not any(line.startswith("child ") for line in process.lines) and time.monotonic() < deadline:
        time.sleep(0.05)
    child = child_in(process.lines)
    process.stop()
    assert gone(process.pid, child)
    process.stop()  # once more does nothing


def test_a_server_that_dies_is_explained_with_its_last_lines_and_what_it_started_is_gone() -> None:
    with pytest.raises(EngineError) as caught, run_server(fake("die"), deadline=60):
        pass
    text = caught.value.message
    assert "ended before it answered (exit code 1)" in text
    assert "SGLang has no such model: Model architectures ['FooModel'] are not supported" in text
    assert gone(int(re.findall(r"child (\d+)", text)[0]))


def test_a_server_that_does_not_answer_in_time_is_ended_and_said_so() -> None:
    with (
        pytest.raises(EngineError, match="did not answer before the deadline") as caught,
        run_server(fake("deaf"), deadline=1.5),
    ):
        pass
    assert caught.value.hint == "a longer --deadline"
    assert gone(int(re.findall(r"child (\d+)", caught.value.message)[0]))


def test_a_server_that_ends_later_is_noticed() -> None:
    with run_server(fake(), deadline=60) as server:
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match=r"the server ended \(exit code 137\): it was killed"):
            server.wait(30)


def test_a_log_without_end_takes_bounded_memory() -> None:
    with run_server(fake("noisy"), deadline=60) as server:
        lines = server.log()
    assert len(lines) <= KEPT_LINES and max(map(len, lines)) <= LINE_BYTES
    assert "y" * 100 in lines[-1]


def test_every_line_of_the_log_is_heard() -> None:
    heard: list[str] = []
    with run_server(fake("noisy"), deadline=60, watch=heard.append):
        pass
    assert [line.split()[1] for line in heard if line.startswith("line ")] == [str(i) for i in range(20_000)]


def test_a_watcher_that_raises_is_heard_and_does_not_stop_the_server() -> None:
    def watch(line: str) -> None:
        raise BrokenPipeError(line)

    process = Supervised(fake("noisy").command, os.environ, watch=watch)
    deadline = time.monotonic() + 60
    while "y" * 100 not in "".join(process.lines[-1:]) and time.monotonic() < deadline:
        time.sleep(0.05)  # it prints on, more than a pipe holds
    with pytest.raises(BrokenPipeError, match="server_args"):
        process.wait(0.0)
    process.stop()
    assert gone(process.pid)


@pytest.mark.usefixtures("shell_signals")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_server_does_not_outlive_its_owner(number: signal.Signals, tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(FAKE.parent.parent.parent)!r})
from tests.lang.test_serve import fake, child_in
from toolkit.lang.serve import run_server
import time
with run_server(fake(), deadline=60) as server:
    print(server.pid, child_in(server.log()), server._process._guard.pid, flush=True)
    time.sleep(600)
"""
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert owner.stdout is not None
    pids = [int(word) for word in owner.stdout.readline().split()]
    assert len(pids) == 3
    owner.send_signal(number)
    owner.wait(30)
    owner.stdout.close()
    assert gone(*pids)


def test_a_server_does_not_outlive_its_guard() -> None:
    with run_server(fake(), deadline=60) as server:
        child = child_in(server.log())
        server._process._guard.kill()
        with pytest.raises(EngineError, match="the server ended"):
            server.wait(30)
        assert gone(server.pid, child)


def test_a_command_that_is_none_is_an_error_and_no_hang() -> None:
    with pytest.raises(EngineError, match="cannot be started: /nowhere/python: No such file"):
        Supervised(["/nowhere/python"], os.environ)


# --- before anything is started ---------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_named_before_anything_starts() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(
            EngineError, match=f"port {port} of 127.0.0.1 cannot be listened on: Address already in use"
        ) as caught:
            run_server(fake(port=port)).__enter__()
    assert "another --port" in caught.value.hint


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a" * 70, "a..b", "203.0.113.7"])
def test_a_host_that_is_none_is_named(host: str) -> None:
    plan = Launch(command=("x",), env={}, model="m", device="cpu", host=host, port=31999)
    with pytest.raises(EngineError, match=re.escape(f"{host} cannot be listened on")):
        run_server(plan).__enter__()
    with pytest.raises(EngineError, match="cannot be listened on"):
        free_port(host)


def test_a_package_that_the_server_needs_is_named_with_the_commands_that_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> Any:
        return None if name == "zmq" else object()

    monkeypatch.setattr(launching, "find_spec", find)
    with pytest.raises(MissingExtraError) as caught:
        run_server(fake()).__enter__()
    assert "zmq, which SGLang's server imports, is not installed" in caught.value.message
    assert "pip install 'sgl-toolkit[cpu]'" in caught.value.hint and "pip install --no-deps sglang==0.5.23" in caught.value.hint


def test_a_gpu_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "found_device", lambda: "cpu")
    plan = Launch(command=("x",), env={}, model="m", device="cuda", host="127.0.0.1", port=31999)
    with pytest.raises(EngineError, match="no GPU that torch can use"):
        run_server(plan).__enter__()


@pytest.mark.parametrize("deadline", [0.0, -1.0])
def test_a_deadline_that_is_none_is_refused(deadline: float) -> None:
    with pytest.raises(UsageError, match="deadline"):
        run_server(fake(), deadline=deadline).__enter__()


def test_what_is_installed_without_dependencies_is_what_the_makefile_installs() -> None:
    makefile = (FAKE.parent.parent.parent / "Makefile").read_text(encoding="utf-8")
    pins = re.search(r"^SGLANG_CPU := (.*)$", makefile, re.MULTILINE)
    assert pins is not None and f"pip install --no-deps {pins[1]}" == launching.NO_DEPS
