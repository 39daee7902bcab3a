"""A scripted engine: known answers without a model, so that the benches' own arithmetic can be tested."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence

from toolkit.contracts import (
    BeamResult,
    Capabilities,
    Completion,
    Done,
    Event,
    Failed,
    FieldConfidence,
    Hypothesis,
    Json,
    Prompt,
    Request,
    Usage,
)
from toolkit.errors import NoValidError, ToolkitError

EOS = 256
Script = Callable[[Request], list[tuple[Json, float]]]


class Bytes:
    """Byte tokenizer: id = byte, one end token."""

    vocab_size = 257
    eos_ids = (EOS,)
    control_ids = frozenset({EOS})
    fingerprint = "bytes"

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(token for token in ids if token != EOS).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id == EOS else bytes([token_id])

    def chat(self, messages: Sequence[object], *, generate: bool = True) -> list[int]:
        return self.encode(json.dumps(messages))


class ScriptedEngine:
    """`script(request)` gives [(value or raw text marked by a leading NUL, log-probability)], best first."""

    def __init__(self, script: Script, *, odd_twin: bool = False) -> None:
        self.script = script
        self.tokenizer = Bytes()
        self.odd_twin = odd_twin  # a width-1 beam that gives another answer than greedy
        self.asked: list[Request] = []
        self._known: dict[tuple[int, ...], float] = {}  # log-probability of a greedy answer

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            engine="scripted", model="script", fingerprint="f" * 64, context=4096, vocab_size=257,
            grammars=("json_schema",), beam=True, score=True,
        )  # fmt: skip

    def generate(self, requests: Iterable[Request]) -> Iterator[Event]:
        for request in reversed(list(requests)):  # results come in any order
            self.asked.append(request)
            ranked = self.script(request)
            if request.beam is None:
                yield Done(request.id, 0, self._greedy(*ranked[0]))
            else:
                yield self._beam(request, ranked)

    def _greedy(self, value: Json, logprob: float) -> Completion:
        text = self._text(value)
        cut = isinstance(value, str) and value.startswith("\0")
        ids = tuple(text.encode())  # as the embedded engine: no pass for an end that the grammar forces
        self._known[(*ids, EOS)] = logprob
        return Completion(
            text=text, token_ids=ids, finish_reason="length" if cut else "grammar",
            usage=Usage(passes=4, rows=4, input_tokens=10, cached_tokens=5),
        )  # fmt: skip

    def _beam(self, request: Request, ranked: list[tuple[Json, float]]) -> Event:
        assert request.beam is not None
        if request.beam.width == 1:
            ranked = ranked[1:] if self.odd_twin else ranked[:1]
        values = [(value, logprob) for value, logprob in ranked if not (isinstance(value, str) and value.startswith("\0"))]
        if not values:
            return Failed(request.id, NoValidError("no hypothesis is valid", texts=(self._text(ranked[0][0]),)))
        hypotheses = tuple(
            Hypothesis(
                text=self._text(value),
                token_ids=(*self._text(value).encode(), EOS),
                token_logprobs=(logprob,),
                score=logprob,
                sum_logprob=logprob,
                value=value,
            )
            for value, logprob in sorted(values, key=lambda pair: -pair[1])[: request.beam.width]
        )
        best = hypotheses[0]
        result = BeamResult(
            value=best.value, text=best.text, valid=True, score=best.score, sum_logprob=best.sum_logprob,
            alternatives=hypotheses, confidence={"/x": FieldConfidence(0.5, 0.4, 2)}, usage=Usage(passes=6, rows=20),
        )  # fmt: skip
        return Done(request.id, 0, result)

    def _text(self, value: Json) -> str:
        if isinstance(value, str) and value.startswith("\0"):
            return value[1:]
        return json.dumps(value, separators=(",", ":"))

    def score(self, prompt: Prompt, continuations: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[self._known.get(tuple(ids), -9.0)] for ids in continuations]

    def cancel(self, request_id: str) -> None:
        raise ToolkitError("the script cannot be cancelled")

    def close(self) -> None:
        pass
