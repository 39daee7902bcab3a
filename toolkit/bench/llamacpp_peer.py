"""llama.cpp peer: greedy text from the same GGUF file by `llama-cpp-python`, for the cost of plain decoding.

In: token ids.   Out: token ids and seconds to the first and to the last of them.
Knows nothing about: grammars, engines.
The package is the extra `peers`; build it natively (`pip install --no-binary llama-cpp-python`), or its kernels are generic.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from toolkit.contracts import Engine
from toolkit.errors import MissingExtraError, UnsupportedError
from toolkit.model.store import show


class Run(NamedTuple):
    """What one greedy run gave; seconds count from the call."""

    token_ids: tuple[int, ...]
    ttft_s: float
    e2e_s: float

    @property
    def decode_tok_s(self) -> float:
        """(tokens - 1) / (e2e - ttft), as everywhere in this project."""
        return (len(self.token_ids) - 1) / (self.e2e_s - self.ttft_s)


def is_installed() -> bool:
    return find_spec("llama_cpp") is not None


class LlamaCppPeer:
    """One model of llama.cpp on `threads` threads."""

    def __init__(self, file: Path, *, context: int, threads: int) -> None:
        if not is_installed():
            raise MissingExtraError("llama-cpp-python", "peers")
        from llama_cpp import Llama

        self._model: Any = Llama(
            model_path=str(file), n_ctx=context, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def greedy(self, prompt: Sequence[int], count: int) -> Run:
        """`count` greedy tokens after `prompt`, end tokens not obeyed; nothing of an earlier run is reused."""
        self._model.reset()
        start, first, ids = time.perf_counter(), 0.0, []
        for token in self._model.generate(list(prompt), temp=0.0, repeat_penalty=1.0, reset=True):
            first = first or time.perf_counter() - start
            ids.append(int(token))
            if len(ids) == count:
                break
        return Run(tuple(ids), first, time.perf_counter() - start)

    def close(self) -> None:
        self._model.close()


@contextmanager
def open_peer(engine: Engine) -> Iterator[LlamaCppPeer]:
    """llama.cpp over the GGUF file that the engine's model was converted from, on all cores."""
    source = Path(show(engine.capabilities.model).source)
    if source.suffix != ".gguf":
        raise UnsupportedError(
            f"model {engine.capabilities.model} does not come from a GGUF file: llama.cpp reads nothing else"
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    peer = LlamaCppPeer(source, context=min(2048, engine.capabilities.context), threads=cores)
    try:
        yield peer
    finally:
        peer.close()
