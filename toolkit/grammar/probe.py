"""Probe: a process that compiles first, and dies where a compile has no end.

In: a grammar in llguidance's own text, seconds of CPU time (so that a busy machine changes no verdict).   Out: its error, "" where it compiles.
Knows nothing about: tokenizers (it uses the 256 bytes), schemas, this package: it runs as a file of its own.
Invariants: no call lasts longer than its seconds; a compile that hangs, crashes or eats memory takes down the probe, never the
caller, and the next call starts a new one. Thread-safe.
Why: llguidance's limits do not reach all of its work (measured with 1.9.1: 14 intersected patterns 9 s, `multipleOf` 999983 more
than 20 s, both doubling), it runs in this process, and native code cannot be interrupted.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from typing import Any

MEMORY_BYTES = 2 * 1024**3
OUT_OF_TIME = "the compile had no end within the time limit"
CRASHED = "the compile crashed or ran out of memory"


class Probe:
    """One child process, started at the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None

    def error_of(self, grammar: str, seconds: float, limits: dict[str, int]) -> tuple[str, float]:
        """(why `grammar` does not compile, "" where it does, seconds used). OUT_OF_TIME or CRASHED cost the child its life."""
        line = json.dumps({"grammar": grammar, "seconds": max(seconds, 0.01), "limits": limits})
        with self._lock:
            child = self._running()
            assert child.stdin is not None and child.stdout is not None
            try:
                child.stdin.write(f"{line}\n")
                child.stdin.flush()
                answer = child.stdout.readline()
            except BrokenPipeError:
                answer = ""
            if answer:
                error, used = json.loads(answer)
                return str(error), float(used)
            self._drop()
            return (OUT_OF_TIME if child.returncode == -signal.SIGPROF else CRASHED), seconds

    def close(self) -> None:
        """End the child, if there is one."""
        with self._lock:
            self._drop()

    def forget(self) -> None:
        """After a fork: the child belongs to the parent, whose pipes must not be shared."""
        self._lock, self._child = threading.Lock(), None

    def _running(self) -> subprocess.Popen[str]:
        if self._child is None or self._child.poll() is not None:
            self._drop()
            self._child = subprocess.Popen(
                [sys.executable, "-I", __file__],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
                start_new_session=True,  # an interrupt at the keyboard is for the caller
            )  # fmt: skip
        return self._child

    def _drop(self) -> None:
        if self._child is not None:
            for pipe in (self._child.stdin, self._child.stdout):
                try:
                    if pipe is not None:
                        pipe.close()
                except BrokenPipeError:
                    continue
            self._child.wait()  # it ends at the end of its input, or by its own timer
            self._child = None


PROBE = Probe()
atexit.register(PROBE.close)
os.register_at_fork(after_in_child=PROBE.forget)


class _Bytes:
    """The smallest vocabulary: the bytes and an end token."""

    eos_token_id = 256
    bos_token_id = None
    special_token_ids = (256,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def _serve() -> None:
    """The child: one JSON line in, one out. SIGPROF keeps its default action, which ends the process even in native code."""
    import llguidance

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    tokenizer: Any = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), n_vocab=257, eos_token=256)
    for line in sys.stdin:
        task = json.loads(line)
        started = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, task["seconds"])
        limits = llguidance.LLParserLimits(**task["limits"], verbose_errors=False)
        matcher = llguidance.LLMatcher(tokenizer, task["grammar"], log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps([matcher.get_error(), time.process_time() - started]), flush=True)


if __name__ == "__main__":
    _serve()
