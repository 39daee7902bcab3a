"""Results: the events of one request to its result, and a result to plain JSON.

In: an engine's events; a contracts.BeamResult.   Out: results, or the request's error; dicts and lines of JSON.
Knows nothing about: engines, files, SGLang.
Invariants: a request that failed raises, one that ended without a result is an EngineError; what `json_text` writes,
`schema.parse_json` reads (but for its limits); field names are the command line's promise and stay.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import asdict

from toolkit.contracts import BeamResult, Completion, Done, Event, Failed, FieldConfidence, Hypothesis, Json
from toolkit.errors import EngineError

_SURROGATE = re.compile("[\ud800-\udfff]")


def answered(events: Iterable[Event], results: int = 1) -> Iterator[Event]:
    """The events of one request as they come; its failure is raised, and so is EngineError where fewer results came.

    A generator of events is closed at the end by any way, so that the engine forgets the request at once.
    """
    missing = results
    try:
        for event in events:
            if isinstance(event, Failed):
                raise event.error
            missing -= isinstance(event, Done)
            yield event
    finally:
        if isinstance(events, Generator):
            events.close()
    if missing > 0:
        raise EngineError("the engine ended a request without a result")


def only_result(events: Iterable[Event]) -> Completion | BeamResult:
    """The result of a request that has one, a beam search or a single sample; raises as `answered` does."""
    return [event.result for event in answered(events) if isinstance(event, Done)][-1]


def beam_result(events: Iterable[Event]) -> BeamResult:
    """The result of a beam search; EngineError where the engine gave something else."""
    result = only_result(events)
    if not isinstance(result, BeamResult):
        raise EngineError(f"the engine gave a {type(result).__name__} for a beam search")
    return result


def result_fields(result: BeamResult) -> dict[str, Json]:
    """Everything a reader of one result needs, best hypothesis first in `alternatives`; infinite scores are None."""
    return {
        "value": result.value,
        "valid": result.valid,
        "score": finite(result.score),
        "sum_logprob": finite(result.sum_logprob),
        "text": result.text,
        "alternatives": [_alternative(item) for item in result.alternatives],
        "confidence": {path: item.product for path, item in result.confidence.items()},
        "confidence_detail": {path: _confidence(item) for path, item in result.confidence.items()},
        "diversity": result.diversity,
        "partial": list(result.partial),
        "notes": list(result.notes),
        "usage": asdict(result.usage),
        "timing": asdict(result.timing),
    }


def finite(number: float) -> float | None:
    """The number, or None for an infinite one (the score of what the model holds impossible)."""
    return number if math.isfinite(number) else None


def json_text(value: Json) -> str:
    """One line of JSON: no spaces, Unicode as it is; half of a surrogate pair (a file name's odd byte) becomes U+FFFD.

    Raises ValueError for a number that JSON does not have.
    """
    return characters(json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False))


def characters(text: str) -> str:
    """The text with U+FFFD for everything that is no character."""
    return _SURROGATE.sub("\ufffd", text)


def _alternative(item: Hypothesis) -> dict[str, Json]:
    return {
        "value": item.value,
        "score": finite(item.score),
        "sum_logprob": finite(item.sum_logprob),
        "valid": item.valid,
        "text": item.text,
        "violations": [asdict(violation) for violation in item.violations],
    }


def _confidence(item: FieldConfidence) -> Mapping[str, Json]:
    return {**asdict(item), "margin": None if item.margin is None else finite(item.margin)}
