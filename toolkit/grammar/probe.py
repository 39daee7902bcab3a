"""Probe: a process that compiles first, and dies where a compile has no end.

In: a grammar in llguidance's own text, seconds of CPU time (so that a busy machine changes no verdict).   Out: its error, "" where it compiles.
Knows nothing about: what the child does with its seconds (`probe_child`), tokenizers, schemas.
Invariants: no call costs more CPU than its seconds; a compile that hangs, crashes or eats memory takes down the probe, never the
caller, and the next call starts a new one; an answer belongs to the question before it, whatever interrupted earlier ones; a
child that cannot start is an EngineError, never a verdict over a grammar. Thread-safe.
Why: llguidance's limits do not reach all of its work (measured with 1.9.1: 14 intersected patterns 9 s, `multipleOf` 999983 more
than 20 s, both doubling), it runs in this process, and native code cannot be interrupted.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from importlib.util import find_spec
from pathlib import Path

from toolkit.errors import EngineError
from toolkit.grammar import probe_child

OUT_OF_TIME = "the compile had no end within the time limit"
CRASHED = "the compile crashed or ran out of memory"


class Probe:
    """One child process, started at the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._asked = 0

    def error_of(self, grammar: str, seconds: float, limits: dict[str, int]) -> tuple[str, float]:
        """(why `grammar` does not compile, "" where it does, seconds used). OUT_OF_TIME or CRASHED cost the child its life.

        Raises EngineError where the probe itself is at fault.
        """
        with self._lock:
            self._asked += 1
            task = {"number": self._asked, "grammar": grammar, "seconds": max(seconds, 0.01), "limits": limits}
            child = self._running()
            answer = self._exchange(child, json.dumps(task))
            if not answer:
                child.wait()  # its end is how the answer ended
                self._drop()
                return (OUT_OF_TIME if child.returncode == -signal.SIGPROF else CRASHED), seconds
            number, error, used = json.loads(answer)
            if number != self._asked:
                self._drop()
                raise EngineError(f"the grammar probe answered question {number}, not {self._asked}", hint="try again")
            return str(error), float(used)

    def close(self) -> None:
        """End the child, if there is one."""
        with self._lock:
            self._drop()

    def forget(self) -> None:
        """After a fork: the child belongs to the parent, whose pipes must not be shared."""
        self._lock, self._child = threading.Lock(), None

    def _exchange(self, child: subprocess.Popen[str], line: str) -> str:
        """One line out, one line in, "" where the child ended. An interrupt takes the child along, and its late answer."""
        assert child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(f"{line}\n")
            child.stdin.flush()
            answer = child.stdout.readline()
            return answer if answer.endswith("\n") else ""  # the end may come in the middle of a line
        except BrokenPipeError:
            return ""
        except BaseException:
            self._drop()
            raise

    def _running(self) -> subprocess.Popen[str]:
        if self._child is None or self._child.poll() is not None:
            self._drop()
            self._child = _started()
        return self._child

    def _drop(self) -> None:
        if self._child is not None:
            child, self._child = self._child, None
            _end(child)


def _started() -> subprocess.Popen[str]:
    """A child that has said that it is ready. Raises EngineError with the child's own words where it cannot be."""
    spec = find_spec("llguidance")  # where this process finds it: -I looks neither at PYTHONPATH nor beside the script
    folder = str(Path(spec.origin).parents[1]) if spec is not None and spec.origin else ""
    with tempfile.TemporaryFile() as words:
        child = subprocess.Popen(
            [sys.executable, "-I", probe_child.__file__, folder],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words, text=True, encoding="utf-8",
            start_new_session=True,  # an interrupt at the keyboard is for the caller
        )  # fmt: skip
        assert child.stdout is not None
        try:
            ready = probe_child.READY in iter(child.stdout.readline, "")
        except BaseException:
            _end(child)
            raise
        if ready:
            return child
        code = child.wait()
        _end(child)
        words.seek(0)
        said = words.read(100_000).decode(errors="replace").strip()[-500:]
    raise EngineError(
        f"the grammar probe, a second Python process, could not start (exit {code}): {said}",
        hint=f"`{sys.executable} -c 'import llguidance'` shows more",
    )


def _end(child: subprocess.Popen[str]) -> None:
    child.kill()  # it holds nothing that could be lost
    for pipe in (child.stdin, child.stdout):
        try:
            if pipe is not None:
                pipe.close()
        except BrokenPipeError:
            continue
    child.wait()


PROBE = Probe()
atexit.register(PROBE.close)
os.register_at_fork(after_in_child=PROBE.forget)
