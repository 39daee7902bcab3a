"""Supervise: a server process under a guard, its last log lines, its end.

In: a command and its environment.   Out: a Supervised process.
Knows nothing about: SGLang, HTTP.
Invariants: memory for the log is bounded whatever the server prints; `stop` returns only when no process of the server is left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from toolkit.errors import EngineError
from toolkit.lang import guard

KEPT_LINES = 400
LINE_BYTES = 4096  # a longer line is cut into pieces
STOP_SECONDS = guard.GRACE + 10

Watch = Callable[[str], None]  # gets every line of the server's log, in a thread of its own


class Supervised:
    """A running command and everything it started. `pid` leads its session; `lines` are its last ones."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], *, watch: Watch | None = None) -> None:
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._watch = watch
        # -I: the guard must not read the server's PYTHONPATH; -S would be quicker still, but hides the venv.
        arguments = [sys.executable, "-I", str(Path(guard.__file__)), *command]
        try:
            self._guard = subprocess.Popen(
                arguments,
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise EngineError(f"{command[0]} cannot be started: {error}") from error
        assert self._guard.stdout is not None
        first = self._guard.stdout.readline(LINE_BYTES).strip()
        if not first.isdigit():
            self._guard.kill()
            raise EngineError(f"{command[0]} cannot be started: {first.decode(errors='replace')}")
        self.pid = int(first)
        self._reader = threading.Thread(target=self._read, name="server log", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._guard.stdout is not None
        with self._guard.stdout as output:
            while piece := output.readline(LINE_BYTES):
                line = piece.decode("utf-8", "replace").rstrip()
                self._lines.append(line)
                if self._watch is not None:
                    self._watch(line)

    @property
    def lines(self) -> list[str]:
        return list(self._lines)

    def poll(self) -> int | None:
        """The exit code as a shell shows it (137: killed), None while it runs. Once there is one, all lines are there too."""
        code = self._guard.poll()
        if code is not None:
            self._reader.join(STOP_SECONDS)
            _kill_session(self.pid)  # the guard has done so, unless somebody killed the guard
        return None if code is None else code if code >= 0 else 128 - code

    def wait(self, seconds: float) -> int | None:
        """The exit code, or None if it still runs after that time."""
        try:
            self._guard.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        return self.poll()

    def stop(self) -> None:
        """End the server and everything it started; again: nothing happens."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        if self.wait(STOP_SECONDS) is None:
            self._guard.kill()
            _kill_session(self.pid)
            self._guard.wait()
        self._reader.join(STOP_SECONDS)


def _kill_session(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
