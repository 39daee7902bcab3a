"""Supervise: a server process under a guard, its last log lines, its end.

In: a command and its environment.   Out: a Supervised process.
Knows nothing about: SGLang, HTTP.
Invariants: no key of the command is in the log that is kept or told; memory for it is bounded whatever the server prints; `stop`
returns only when no process of the server is left.
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
from toolkit.lang.hiding import Hider, secrets_of

GRACE = 10.0  # seconds from SIGTERM to SIGKILL; an idle SGLang server needs one to two
KEPT_LINES = 400
LINE_BYTES = 4096  # a longer line is cut into pieces

Watch = Callable[[str], None]  # gets every line of the server's log, in a thread of its own


class Supervised:
    """A running command and everything it started. `pid` leads its session. EngineError if it cannot be started."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], *, watch: Watch | None = None, grace: float = GRACE
    ) -> None:
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._watch = watch
        self._hider = Hider(secrets_of(command))
        self._broken: Exception | None = None
        self._patience = grace + guard.REAP + 5.0
        # -I: the guard itself must not read the server's PYTHONPATH.
        arguments = [sys.executable, "-I", str(Path(guard.__file__)), str(grace), *command]
        self._guard = subprocess.Popen(
            arguments,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in a terminal is for this process: it decides what ends
        )
        assert self._guard.stdin is not None and self._guard.stdout is not None
        self._lifeline, self._output = self._guard.stdin, self._guard.stdout
        first = self._output.readline(LINE_BYTES).decode("utf-8", "replace").strip()
        if not first.isdigit():
            self._lifeline.close()
            self._output.close()
            self._guard.wait()
            raise EngineError(f"the server cannot be started: {first or 'its guard died'}")
        self.pid = int(first)
        self._reader = threading.Thread(target=self._read, name="server log", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with self._output:
            while piece := self._output.readline(LINE_BYTES):
                self._heard(self._hider.feed(piece.decode("utf-8", "replace"), ends=piece.endswith(b"\n")))
        if rest := self._hider.feed("", ends=True):
            self._heard(rest)

    def _heard(self, line: str) -> None:
        self._lines.append(line.rstrip())
        if self._watch is not None and self._broken is None:
            try:
                self._watch(line.rstrip())
            except Exception as error:  # the log is read on: a full pipe would stop the server
                self._broken = error

    @property
    def lines(self) -> list[str]:
        """The last lines that were printed."""
        return list(self._lines)

    def wait(self, seconds: float) -> int | None:
        """The exit code as a shell shows it (137: killed), or None if it still runs after that time; with the code all lines are there.

        What `watch` raised is raised here.
        """
        code = self._wait(seconds)
        if self._broken is not None:
            raise self._broken
        return code

    def _wait(self, seconds: float) -> int | None:
        try:
            code = self._guard.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        if code < 0:  # somebody killed the guard: its work is done here
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._reader.join(self._patience)
        return code if code >= 0 else 128 - code

    def stop(self) -> None:
        """End the server and everything it started; once more does nothing."""
        self._lifeline.close()
        if self._wait(self._patience) is None:
            self._guard.kill()
            self._wait(self._patience)
