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
from dataclasses import asdict, replace

from toolkit.contracts import BeamResult, Completion, Delta, Done, Event, Failed, FieldConfidence, Hypothesis, Json
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


def token_events(events: Iterable[Event]) -> Iterator[Event]:
    """The same events with one token in each: a burst of n tokens becomes n deltas, everything else stays as it is.

    Each has its token's share of the text, its log-probability where there is one, and the books as of the burst with the output
    counted up to it. Where an engine does not say which token has which text, the burst's last token has it. Text that the end
    of a sample sets free without a token is an event without one.
    """
    try:
        for event in events:
            if isinstance(event, Delta) and len(event.token_ids) > 1:
                yield from _split(event)
            else:
                yield event
    finally:
        if isinstance(events, Generator):
            events.close()


def _split(burst: Delta) -> Iterator[Delta]:
    size = len(burst.token_ids)
    texts = burst.texts or ("",) * (size - 1) + (burst.text,)
    for place, (token, text) in enumerate(zip(burst.token_ids, texts, strict=True)):
        usage = burst.usage and replace(burst.usage, output_tokens=burst.usage.output_tokens - (size - 1 - place))
        yield Delta(
            burst.request_id,
            burst.index,
            text,
            (token,),
            texts=(text,) if burst.texts else (),
            logprobs=burst.logprobs[place : place + 1],
            usage=usage,
        )


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
