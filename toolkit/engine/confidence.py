"""Confidence: how sure the model was of each value, from the probabilities of the tokens that spell it.

A value's tokens are those that overlap its characters; their probabilities are renormalised over what the grammar allowed,
so punctuation that the schema dictates costs nothing. `product` is the probability of the whole value, `minimum` its least
certain token, `margin` how much the best alternative with another value there scores below.
In: a finished hypothesis.   Out: JSON pointer -> FieldConfidence, for every scalar ("" = the whole text if it is not JSON).
Knows nothing about: the search.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from toolkit.contracts import FieldConfidence, Hypothesis, Json, Tokenizer
from toolkit.validate.spans import value_spans


def field_confidence(
    hypothesis: Hypothesis, allowed: Sequence[float], tokenizer: Tokenizer, is_json: bool
) -> Mapping[str, FieldConfidence]:
    """allowed [T] are the renormalised log-probabilities of `hypothesis.token_ids` [T]. Margins are left open."""
    edges = [0]
    for token in hypothesis.token_ids:
        edges.append(edges[-1] + len(tokenizer.token_bytes(token)))
    if not (is_json and hypothesis.valid):
        return {"": _of(list(allowed))}
    found: dict[str, FieldConfidence] = {}
    for path, (start, stop) in value_spans(hypothesis.text).items():
        touching = [a for a, left, right in zip(allowed, edges, edges[1:], strict=False) if left < stop and right > start]
        found[path] = _of(touching)
    return found


def with_margins(answer: Hypothesis, alternatives: Sequence[Hypothesis]) -> Mapping[str, FieldConfidence]:
    """The answer's confidences, each with its margin to the best other hypothesis that says something else there."""
    mine = scalars(answer.value)
    filled: dict[str, FieldConfidence] = {}
    for path, confidence in answer.confidence.items():
        others = [
            other.score
            for other in alternatives
            if other is not answer and scalars(other.value).get(path, _ABSENT) != mine.get(path, _ABSENT)
        ]
        filled[path] = replace(confidence, margin=answer.score - max(others)) if others else confidence
    return filled


def scalars(value: Json, path: str = "") -> dict[str, tuple[str, Json]]:
    """JSON pointer -> (type name, scalar) of every leaf; empty containers are leaves. True is not 1."""
    if isinstance(value, dict) and value:
        parts = [scalars(v, f"{path}/{str(k).replace('~', '~0').replace('/', '~1')}") for k, v in value.items()]
    elif isinstance(value, list) and value:
        parts = [scalars(v, f"{path}/{i}") for i, v in enumerate(value)]
    else:
        return {path: (type(value).__name__, value if not isinstance(value, dict | list) else None)}
    return {p: leaf for part in parts for p, leaf in part.items()}


_ABSENT = ("absent", None)


def _of(logprobs: list[float]) -> FieldConfidence:
    return FieldConfidence(
        product=math.exp(math.fsum(logprobs)), minimum=math.exp(min(logprobs, default=0.0)), tokens=len(logprobs)
    )
