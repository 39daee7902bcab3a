"""A scripted engine: answers by the text of the record, in any order, with failures where a text asks for one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from toolkit.contracts import (
    BeamResult,
    Capabilities,
    Completion,
    Done,
    Event,
    Failed,
    FieldConfidence,
    Hypothesis,
    Prompt,
    Request,
    Usage,
)
from toolkit.errors import CancelledError, ToolkitError
from toolkit.text.tokenizer import ByteTokenizer

Answer = Callable[[str], Any]


def last_text(prompt: Prompt) -> str:
    """What the record contributed: the last message, or the raw prompt."""
    if isinstance(prompt, str):
        return prompt
    last: Any = prompt[-1]
    return str(last["content"])


def beam_result(value: Any, score: float = -0.5) -> BeamResult:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    best = Hypothesis(text=text, token_ids=(1,), token_logprobs=(score,), score=score, sum_logprob=score, value=value)
    confidence = {"/n": FieldConfidence(product=0.5, minimum=0.25, tokens=2, margin=None)}
    usage = Usage(input_tokens=10, output_tokens=2, passes=2)
    return BeamResult(
        value=value,
        text=text,
        valid=True,
        score=score,
        sum_logprob=score,
        alternatives=(best,),
        confidence=confidence,
        usage=usage,
    )


class ScriptedEngine:
    """`answer(text)` gives a value, raises a ToolkitError, or any exception; a text starting with "slow" takes its time."""

    def __init__(self, answer: Answer, *, fingerprint: str = "model-1") -> None:
        self.tokenizer = ByteTokenizer()
        self.answer = answer
        self.fingerprint = fingerprint
        self.prompts: list[Prompt] = []
        self.running = 0
        self.most_running = 0
        self.cancelled: set[str] = set()
        self.lock = threading.Lock()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            engine="scripted", model="scripted", fingerprint=self.fingerprint, context=1000, vocab_size=300,
            grammars=("json_schema",), beam=True, score=False,
        )  # fmt: skip

    def generate(self, requests: Iterable[Request]) -> Iterator[Event]:
        for request in requests:
            with self.lock:
                if request.id != "preflight":
                    self.prompts.append(request.prompt)
                self.running += 1
                self.most_running = max(self.most_running, self.running)
            try:
                yield self._one(request)
            finally:
                with self.lock:
                    self.running -= 1

    def _one(self, request: Request) -> Event:
        text = last_text(request.prompt)
        if text.startswith("slow"):
            time.sleep(0.05)
        while text.startswith("endless"):
            if request.id in self.cancelled:
                return Failed(request.id, CancelledError("cancelled"))
            time.sleep(0.001)
        try:
            value = self.answer(text)
        except ToolkitError as error:
            return Failed(request.id, error)
        if request.beam is None:
            return Done(request.id, 0, Completion(text="a", token_ids=(1,), finish_reason="length"))
        return Done(request.id, 0, beam_result(value))

    def score(self, prompt: Prompt, continuations: Sequence[Sequence[int]]) -> list[list[float]]:
        raise AssertionError("a job scores nothing")

    def cancel(self, request_id: str) -> None:
        self.cancelled.add(request_id)

    def close(self) -> None:
        pass
