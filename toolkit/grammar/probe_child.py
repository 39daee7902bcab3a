"""Probe child: the process behind `probe`, a script of its own.

In: the folder that holds llguidance; then one JSON line a grammar: number, grammar, seconds, limits.   Out: READY, then one JSON
line an answer: the number, the error ("" = it compiles), the seconds of CPU time used.
Knows nothing about: this package, which it does not import (it may stand where only the parent looks).
Invariants: SIGPROF keeps its default action, which ends the process even in native code, once a task's seconds are spent; no
more memory than MEMORY_BYTES. It sees the 256 bytes as vocabulary: the smallest that compiles every grammar.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from typing import Any

MEMORY_BYTES = 2 * 1024**3
READY = "ready\n"


class _Bytes:
    """The bytes and an end token."""

    eos_token_id = 256
    bos_token_id = None
    special_token_ids = (256,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def _serve() -> None:
    import llguidance

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    tokenizer: Any = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), n_vocab=257, eos_token=256)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # from here on, what native code says is of no use
    sys.stdout.write(READY)
    sys.stdout.flush()
    for line in sys.stdin:
        task = json.loads(line)
        started = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, task["seconds"])
        limits = llguidance.LLParserLimits(**task["limits"], verbose_errors=False)
        matcher = llguidance.LLMatcher(tokenizer, task["grammar"], log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps([task["number"], matcher.get_error(), time.process_time() - started]), flush=True)


if __name__ == "__main__":
    sys.path.append(sys.argv[1])  # last, so that nothing there hides what this Python has
    _serve()
