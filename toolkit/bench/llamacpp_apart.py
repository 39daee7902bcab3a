"""llama.cpp apart: the peer in a process of its own, so that nothing which the engine's process sets or does slows it down.

In: what a LlamaCppPeer is made of, its calls.   Out: what it gave; seconds are measured where it runs.
Why: the engine makes libgomp's idle threads sleep early (GOMP_SPINCOUNT, toolkit/engine/__init__.py), for the whole process. llama.cpp's threads meet
hundreds of times a token and must not sleep there: in one process with the engine it had less than half of its speed.
Knows nothing about: models.
Invariants: llama.cpp runs with libgomp's own default; a child that ends by itself is an error here, not a crash.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from toolkit.bench.llamacpp_peer import LlamaCppPeer, Run, Together, is_installed
from toolkit.contracts import Engine
from toolkit.errors import EngineError, MissingExtraError, UnsupportedError
from toolkit.model.store import show

SPIN = "GOMP_SPINCOUNT"


class LlamaCppApart:
    """A LlamaCppPeer by its methods. MissingExtraError without the package, EngineError where llama.cpp fails or its process ends."""

    def __init__(self, file: Path, *, context: int, threads: int) -> None:
        if not is_installed():
            raise MissingExtraError("llama-cpp-python", "peers")
        here, there = multiprocessing.Pipe()
        start = multiprocessing.get_context("spawn").Process
        self._pipe, self._process = here, start(target=_serve, args=(there, str(file), context, threads), daemon=True)
        self._process.start()
        there.close()
        self._answer()

    def greedy(self, prompt: Sequence[int], count: int) -> Run:
        """As LlamaCppPeer.greedy."""
        return Run(*self._call("greedy", list(prompt), count))

    def together(self, prompts: Sequence[Sequence[int]], count: int) -> Together:
        """As LlamaCppPeer.together."""
        return Together(*self._call("together", [list(prompt) for prompt in prompts], count))

    def close(self) -> None:
        self._pipe.close()
        self._process.join(5.0)
        self._process.kill()

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            self._pipe.send((name, arguments))
        except OSError as error:
            raise self._gone() from error
        return self._answer()

    def _answer(self) -> Any:
        try:
            is_good, found = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise self._gone() from error
        if not is_good:
            raise EngineError(f"llama.cpp failed: {found}")
        return found

    def _gone(self) -> EngineError:
        self._process.join(5.0)
        return EngineError(
            f"llama.cpp's process ended by itself (exit code {self._process.exitcode})",
            hint="build llama-cpp-python without what crashes, or uninstall it",
        )


def _serve(pipe: Connection, file: str, context: int, threads: int) -> None:
    """Answer calls until the other end is closed."""
    os.environ.pop(SPIN, None)  # libgomp reads it when llama.cpp is loaded
    try:
        peer = LlamaCppPeer(Path(file), context=context, threads=threads)
        pipe.send((True, None))
        while True:
            name, arguments = pipe.recv()
            pipe.send((True, tuple(getattr(peer, name)(*arguments))))
    except EOFError:
        return
    except Exception as error:
        pipe.send((False, f"{type(error).__name__}: {error}"[:300]))


@contextmanager
def open_peer(engine: Engine) -> Iterator[LlamaCppApart]:
    """llama.cpp over the GGUF file that the engine's model was converted from, on all cores."""
    source = Path(show(engine.capabilities.model).source)
    if source.suffix != ".gguf":
        raise UnsupportedError(
            f"model {engine.capabilities.model} does not come from a GGUF file: llama.cpp reads nothing else"
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    peer = LlamaCppApart(source, context=min(2048, engine.capabilities.context), threads=cores)
    try:
        yield peer
    finally:
        peer.close()
