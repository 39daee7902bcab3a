"""The sandbox: honest code is judged, everything else ends, says why, and has touched nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.gate import sandbox
from toolkit.gate.sandbox import run


def test_code_that_passes_its_tests_passes() -> None:
    assert run("import math\ndef root(x):\n    return math.sqrt(x)", "assert root(9) == 3") == ""


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def root(x): return x", "AssertionError"),
        ("open('/etc/passwd').read()", "not allowed"),
        ("import socket", "No module named"),
        ("import posix\nposix.close(0)\nposix.open('/etc/passwd', 0)", "not allowed"),
        ("import posix\nposix.kill(1, 0)", "not allowed"),
        ("import posix\nposix.fork()", "not allowed"),
        ("import ctypes", "No module named"),
        ("x = 'a' * 10**10", "MemoryError"),
        ("raise SystemExit(0)", "it said nothing"),
        ("while True: print('x' * 1000)", "the code failed"),
        ("f = lambda n: f(n + 1)\nf(0)", "RecursionError"),
        ("x" * 70_000, "more than"),
        ("import os\nwhile True: os.fork()", "not allowed"),
        ("while True: __import__('_thread').start_new_thread(print, ())", "can't start new thread"),
        ("import gc\ngc.get_objects()", "not allowed"),
        ("import os\nos._exit(0)", "it said nothing"),
        ("print('\\x1b[2J')\nraise SystemExit", "\\x1b[2J"),  # no terminal acts on what a model printed
    ],
)
def test_code_that_does_anything_else_fails_and_says_why(source: str, said: str) -> None:
    why = run(source, "assert root(9) == 3")
    assert said in why and len(why) < 300


def test_no_file_is_removed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("here")
    assert run(f"import posix\nposix.unlink({str(kept)!r})", "") and kept.read_text() == "here"


def test_code_that_sleeps_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "WALL_S", 0.5)
    assert "did not end" in run("import time\ntime.sleep(60)", "")
