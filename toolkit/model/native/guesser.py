"""NativeGuesser: a draft head on the native path, which makes several guesses in one call.

In: tokens, features and places of rows, and how far to guess.   Out: feature rows, and the likeliest guesses one after the other.
Knows nothing about: trees, what is committed. The same call by call, slower: `rows` and `likeliest` of toolkit/draft/mtp_runner.py.
Invariants: as decoder.py's, but for state: one thread at a time. What stands between a target's passes in Python is run with cold caches, so that a guess of .5 ms took 1.8 ms.
Source: native.h.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from ctypes import addressof, byref, c_float, c_int32, c_int64
from dataclasses import dataclass
from math import isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolkit.contracts import require
from toolkit.errors import EngineError
from toolkit.model.decoder import Decoder
from toolkit.model.native.crew import Crew
from toolkit.model.native.decoder import NativeDecoder, within
from toolkit.model.native.library import CGuesses, CLine
from toolkit.model.native.packed import PackedEntry
from toolkit.model.native.scratch import scratch

Likeliest = list[tuple[int, float]]  # outputs and their log-probabilities, the likeliest first


@dataclass(frozen=True, slots=True)
class GuessPlan:
    """How far to guess: at most `most` in a row, none behind a joint log-probability below `least`; `count` alternatives of each are told."""

    most: int
    count: int
    least: float
    temperature: float = 1.0


class NativeGuesser(NativeDecoder):
    """One layer, the target's head over a draft vocabulary (without a bias), and what the rows enter through. One thread at a time may call.

    known [head rows] int64: the target's token of every row of the head.
    """

    def __init__(self, layer: Decoder, entry: PackedEntry, known: Tensor) -> None:
        super().__init__(layer, entry=entry)
        if self._head.bias is not None:
            raise EngineError("a draft head's rows of the target's head have no bias")
        if known.dtype != torch.int64 or known.shape != (self._head.outputs,) or not known.is_contiguous():
            raise EngineError(f"known {list(known.shape)} {known.dtype} must be int64 [{self._head.outputs}]")
        within("known", known.numpy(), 0, entry.embedding.outputs)
        self._known = known
        self._line, self._found = CLine(), CGuesses(tokens=known.data_ptr())
        self._guess_crew = Crew()

    def guesses(
        self, tokens: Sequence[int], place: int, cache: tuple[Tensor, Tensor], slots: NDArray[np.int32], end: int, inputs: Tensor, plan: GuessPlan
    ) -> tuple[Tensor, list[Likeliest]]:  # fmt: skip
        """`features` [T, D] of the last T >= 1 places of a line of `end` slots, the first of them at `place`, and guesses behind: (row of the head, log-probability), the likeliest first.

        Every guess but the last is followed by the next. cache: keys and values; behind `end` lie `plan.most` - 1 slots for guesses. EngineError where a logit is
        not finite, and for anything that is out of bounds.
        """
        line, found, (keys, values), rows = self._line, self._found, cache, len(tokens)
        count = min(plan.count, self._head.outputs)
        if rows < 1 or plan.most < 1 or count < 1 or not 0 < end <= len(slots) + 1 - plan.most:
            raise EngineError(f"guesses need rows, a plan and slots: {rows} rows, {plan}, {end} of {len(slots)} slots")
        hidden = torch.empty(rows, self.config.hidden_size, dtype=torch.float32, device="cpu")
        if (
            slots.dtype != np.int32
            or not slots.flags.c_contiguous
            or inputs.shape != hidden.shape
            or inputs.dtype != hidden.dtype
        ):
            raise EngineError(
                f"slots {slots.dtype} must be int32, inputs {list(inputs.shape)} {inputs.dtype} float32 {list(hidden.shape)}"
            )
        shape = (self.config.layers, self.config.kv_heads, keys.shape[2], self.config.head_dim)
        if not all(each.shape == shape and each.dtype == torch.float32 and each.is_contiguous() for each in cache):
            raise EngineError(f"keys and values must be contiguous float32 {list(shape)}")
        inputs = inputs.contiguous()
        ids, norms = (c_int64 * rows)(*tokens), (c_float * plan.most)()
        best, logits = (c_int32 * (plan.most * count))(), (c_float * (plan.most * count))()
        most = torch.get_num_threads()
        line.rows, line.slots_all, line.context, line.end, line.place = rows, keys.shape[2], self.config.context, end, place
        line.threads = threads = self.threads or self._guess_crew.choose(rows, most)
        line.tokens, line.slots, line.inputs, line.hidden = (
            addressof(ids),
            slots.ctypes.data,
            inputs.data_ptr(),
            hidden.data_ptr(),
        )
        line.keys, line.values = keys.data_ptr(), values.data_ptr()
        found.most, found.count, found.least, found.by = plan.most, count, plan.least, 1.0 / plan.temperature
        found.norms, found.ids, found.values = addressof(norms), addressof(best), addressof(logits)
        model, given = byref(self._model), byref(line)
        with scratch(self._library.native_guess_space(model, given, plan.most)) as line.space:
            began = time.perf_counter()
            wrong = self._library.native_guess(model, given, byref(found))
        if wrong:
            raise EngineError(
                f"a {('token', 'slot', 'place')[wrong - 1]} of {rows} rows at place {place}, with {plan.most} guesses, is out of bounds"
            )
        self._guess_crew.learn(rows, most, threads, (time.perf_counter() - began) * rows / (rows + found.made))
        return hidden, [
            _guesses(norms[at], best[at * count : (at + 1) * count], logits[at * count : (at + 1) * count])
            for at in range(found.made)
        ]

    def likeliest(self, hidden: Tensor, count: int, temperature: float = 1.0) -> list[Likeliest]:
        """(token, log-probability) of the `count` likeliest next tokens of every hidden row [R, D], of equal ones the lower id first.

        EngineError where a logit is not finite.
        """
        require(temperature > 0.0, "temperature", temperature, "a number > 0")
        head, lib = self._head, self._library
        x = (hidden if temperature == 1.0 else hidden / temperature).to(torch.float32).contiguous()
        if x.dim() != 2 or x.shape[1] != head.inputs:
            raise EngineError(f"rows {list(x.shape)} must be [rows, {head.inputs}]")
        rows, count, most = len(x), min(count, head.outputs), torch.get_num_threads()
        if rows == 0 or count < 1:
            return [[] for _ in range(rows)]
        threads = self.threads or self._head_crew.choose(rows, most)
        norms, ids, values = np.empty(rows, np.float32), np.empty((rows, count), np.int32), np.empty((rows, count), np.float32)
        with scratch(lib.native_likeliest_space(byref(self._model.head), rows)) as space:
            began = time.perf_counter()
            lib.native_likeliest(
                byref(self._model.head), self._kernels, x.data_ptr(), rows, count, threads,
                norms.ctypes.data, ids.ctypes.data, values.ctypes.data, space,
            )  # fmt: skip
        self._head_crew.learn(rows, most, threads, time.perf_counter() - began)
        return [_guesses(*each) for each in zip(norms.tolist(), ids.tolist(), values.tolist(), strict=True)]


def _guesses(norm: float, ids: Sequence[int], logits: Sequence[float]) -> Likeliest:
    """(output, log-probability) of a row of logits, from its log-sum and likeliest outputs."""
    if not isfinite(norm):
        raise EngineError("the model's logits are not finite", hint="check its weights and dtype")
    return [(token, min(logit - norm, 0.0)) for token, logit in zip(ids, logits, strict=True)]
