"""toolkit serve: what is printed where, and its exit codes. What is started is a script in SGLang's place."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from toolkit.cli import main
from toolkit.lang.launch import free_port

ROOT = Path(__file__).parent.parent
HUB = "Qwen/Qwen3.8-27B"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["serve", *arguments])
    return code, *capsys.readouterr()


def test_a_dry_run_prints_the_command_and_on_stderr_the_preset(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--model", HUB, "--drafter", "mtp", "--steps", "3", "--dry-run", "--", "--tp", "2")
    speculative = (
        "--speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
    )
    assert code == 0
    assert out.splitlines()[-1] == (
        f"{sys.executable} -m sglang.launch_server --model-path {HUB} --host 127.0.0.1 --port 30000 {speculative} --tp 2"
    )
    assert speculative in err and "multi-token-prediction" in err and "a GPU" in err


def test_a_dry_run_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--model", HUB, "--speculative", "ngram", "--device", "cpu", "--dry-run", "--json")
    found = json.loads(out.splitlines()[-1])
    assert code == 0 and found["device"] == "cpu" and found["env"]["SGLANG_USE_CPU_ENGINE"] == "1"
    assert found["command"][-4:] == ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "12"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--drafter", "medusa"], ["--drafter", "eagle"], ["--drafter", "mtp", "--steps", "0"], ["--port", "70000"], ["--model", "nowhere"],
        ["--model", ""], ["--deadline", "0"], ["--device", "tpu"], ["--no-such-option"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_is_not_allowed_ends_with_exit_code_2_and_nothing_on_stdout(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == 2 and out == "" and err


def test_a_port_that_is_taken_ends_with_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        code, out, err = run(capsys, "--model", HUB, "--device", "cpu", "--port", str(holder.getsockname()[1]))
    assert code == 3 and out == "" and "cannot be listened on" in err and "hint: another --port" in err


RUNNER = """
import sys
from dataclasses import replace
from toolkit.cli import main
from toolkit.lang import launch as launching
plain = launching.launch
def launch(*given, **more):
    plan = plain(*given, **more)
    return replace(plan, command=(sys.executable, FAKE, str(plan.port), *TRAITS))
launching.launch = launch
sys.exit(main(["serve", "--model", "owner/model", "--device", "cpu", "--port", PORT, "--deadline", "60", "--json"]))
"""


def started(port: int, *traits: str) -> subprocess.Popen[str]:
    code = RUNNER.replace("FAKE", repr(str(ROOT / "tests/lang/fake_server.py"))).replace("TRAITS", repr(traits))
    return subprocess.Popen(
        [sys.executable, "-c", code.replace("PORT", repr(str(port)))],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip


@pytest.mark.usefixtures("shell_signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_server_and_then_the_command(number: signal.Signals, code: int) -> None:
    port = free_port()
    command = started(port)
    assert command.stdout is not None
    found = json.loads(command.stdout.readline())
    assert found["url"] == f"http://127.0.0.1:{port}" and psutil.pid_exists(found["pid"])
    command.send_signal(number)
    _, err = command.communicate(timeout=60)
    assert command.returncode == code, err
    assert not psutil.pid_exists(found["pid"])
    assert "arguments accepted" in err


def test_a_server_that_dies_ends_the_command_with_exit_code_3() -> None:
    command = started(free_port(), "die")
    out, err = command.communicate(timeout=120)
    assert command.returncode == 3 and out == ""
    assert "SGLang has no such model" in err and "hint: another model" in err


def test_a_server_that_dies_later_ends_the_command_with_exit_code_3() -> None:
    command = started(free_port())
    assert command.stdout is not None
    os.kill(json.loads(command.stdout.readline())["pid"], signal.SIGKILL)
    _, err = command.communicate(timeout=60)
    assert command.returncode == 3 and "the server ended (exit code 137)" in err
