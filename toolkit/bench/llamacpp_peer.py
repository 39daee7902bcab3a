"""llama.cpp peer: greedy text from the same GGUF file by `llama-cpp-python`, for the cost of plain decoding, one text or eight together.

In: token ids.   Out: token ids and seconds to the first and to the last of them.
Knows nothing about: grammars, engines.
Together: one `llama_decode` a step over one token of every sequence, each sequence with cache cells of its own (llama.cpp's default).
The likeliest token is found by numpy over llama.cpp's logits: cheaper than its sampler chain.
Source: llama.h of llama.cpp, as `llama-cpp-python` exports it.
The package is the extra `peers`; build it natively (`pip install --no-binary llama-cpp-python`), or its kernels are generic.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from toolkit.errors import EngineError, MissingExtraError, UsageError

MOST = 8  # sequences together
_BATCH = 512  # rows of one pass


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


class Together(NamedTuple):
    """What several greedy runs in one batch gave, and their seconds from the call to the last token."""

    token_ids: tuple[tuple[int, ...], ...]
    e2e_s: float

    @property
    def tok_s(self) -> float:
        """All tokens over all the time, prompts included."""
        return sum(map(len, self.token_ids)) / self.e2e_s


class LlamaCppPeer:
    """One model of llama.cpp on `threads` threads; `context` tokens for each sequence, at most MOST of them together."""

    def __init__(self, file: Path, *, context: int, threads: int) -> None:
        if not is_installed():
            raise MissingExtraError("llama-cpp-python", "peers")
        from llama_cpp import Llama

        self._model: Any = Llama(
            model_path=str(file), n_ctx=context, n_batch=_BATCH, n_threads=threads, n_threads_batch=threads, verbose=False
        )
        self._context, self._threads = context, threads
        self._many: _Many | None = None

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

    def together(self, prompts: Sequence[Sequence[int]], count: int) -> Together:
        """`count` greedy tokens after each prompt, all sequences in one batch a step, as `greedy` otherwise."""
        if not 1 <= len(prompts) <= MOST or any(len(prompt) + count > self._context for prompt in prompts):
            raise UsageError(
                f"{len(prompts)} prompts of {[*map(len, prompts)]} tokens: at most {MOST}, {self._context} with their texts"
            )
        if self._many is None:
            self._many = _Many(self._model._model.model, self._context, self._threads)
        start = time.perf_counter()
        texts = self._many.greedy(prompts, count)
        return Together(texts, time.perf_counter() - start)

    def close(self) -> None:
        if self._many is not None:
            self._many.close()
        self._model.close()


class _Many:
    """A second context over the model's weights, for MOST sequences at once."""

    def __init__(self, model: Any, context: int, threads: int) -> None:
        import llama_cpp

        self._cpp: Any = llama_cpp
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_seq_max = MOST * context, MOST
        options.n_batch = options.n_ubatch = _BATCH
        options.n_threads = options.n_threads_batch = threads
        self._context: Any = llama_cpp.llama_init_from_model(model, options)
        if not self._context:
            raise EngineError(f"llama.cpp gave no context for {MOST} sequences of {context} tokens")
        self._vocabulary: int = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch: Any = llama_cpp.llama_batch_init(_BATCH, 0, 1)

    def greedy(self, prompts: Sequence[Sequence[int]], count: int) -> tuple[tuple[int, ...], ...]:
        self._cpp.llama_memory_clear(self._cpp.llama_get_memory(self._context), False)
        texts = [[token] for token in self._start(prompts)]
        for step in range(count - 1):
            rows = [(text[-1], len(prompt) + step, i) for i, (prompt, text) in enumerate(zip(prompts, texts, strict=True))]
            self._decode(rows, set(range(len(rows))))
            for row, text in enumerate(texts):
                text.append(self._likeliest(row))
        return tuple(map(tuple, texts))

    def _start(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """The first token of every text. Prompts share batches as far as they fit."""
        rows = [(token, at, i) for i, prompt in enumerate(prompts) for at, token in enumerate(prompt)]
        lasts = {sum(map(len, prompts[: i + 1])) - 1 for i in range(len(prompts))}
        found = []
        for start in range(0, len(rows), _BATCH):
            wanted = {row - start for row in lasts if start <= row < start + _BATCH}
            self._decode(rows[start : start + _BATCH], wanted)
            found += [self._likeliest(row) for row in sorted(wanted)]
        return found

    def _decode(self, rows: Sequence[tuple[int, int, int]], wanted: set[int]) -> None:
        """One pass over rows (token, position, sequence); `wanted` are those whose logits are read."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, i in wanted
            batch.seq_id[i][0] = sequence
        failed = self._cpp.llama_decode(self._context, batch)
        if failed:
            raise EngineError(f"llama_decode gave {failed} for a batch of {len(rows)} rows")

    def _likeliest(self, row: int) -> int:
        logits = np.ctypeslib.as_array(self._cpp.llama_get_logits_ith(self._context, row), shape=(self._vocabulary,))
        return int(logits.argmax())

    def close(self) -> None:
        self._cpp.llama_batch_free(self._batch)
        self._cpp.llama_free(self._context)
