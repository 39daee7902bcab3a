"""Null engine: gives every beam search the same small value at once, so that what is left is the cost of the layers above an engine.

Knows nothing about: models. Text it cannot give.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from toolkit.contracts import (
    BeamResult,
    Capabilities,
    Done,
    Event,
    FieldConfidence,
    Hypothesis,
    Json,
    Prompt,
    Request,
    Tokenizer,
    Usage,
)
from toolkit.errors import UnsupportedError
from toolkit.text.tokenizer import ByteTokenizer

SCHEMA: Json = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "count": {"type": "integer"}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
_TEXT = '{"name":"text","count":3}'
_VALUE = {"name": "text", "count": 3}
_BEST = Hypothesis(text=_TEXT, token_ids=(1,), token_logprobs=(-0.5,), score=-0.5, sum_logprob=-0.5, value=_VALUE)
_CONFIDENCE = {path: FieldConfidence(product=0.9, minimum=0.8, tokens=2) for path in ("/name", "/count")}
_RESULT = BeamResult(
    value=_VALUE, text=_TEXT, valid=True, score=-0.5, sum_logprob=-0.5, alternatives=(_BEST,), confidence=_CONFIDENCE,
    usage=Usage(input_tokens=10, output_tokens=8, passes=8),
)  # fmt: skip


class NullEngine:
    """An Engine whose every result is the same value of SCHEMA."""

    def __init__(self) -> None:
        self.tokenizer: Tokenizer = ByteTokenizer()

    @property
    def capabilities(self) -> Capabilities:
        """Those of no model."""
        return Capabilities(
            engine="null", model="null", fingerprint="null", context=1 << 20, vocab_size=self.tokenizer.vocab_size,
            grammars=("json_schema",), beam=True, score=False,
        )  # fmt: skip

    def generate(self, requests: Iterable[Request]) -> Iterator[Event]:
        """One result a request, which must be a beam search."""
        for request in requests:
            if request.beam is None:
                raise UnsupportedError("the null engine gives no text", hint="ask it for a beam search")
            yield Done(request.id, 0, _RESULT)

    def score(self, prompt: Prompt, continuations: Sequence[Sequence[int]]) -> list[list[float]]:
        """Not possible."""
        raise UnsupportedError("the null engine scores nothing")

    def cancel(self, request_id: str) -> None:
        """Nothing runs for longer than this call takes."""

    def close(self) -> None:
        """Nothing to free."""
