"""Confidence: how sure the model was of each value, from the probabilities of the tokens that spell it.

A value's tokens are those that overlap its characters, and for a number also the one after it: nothing else says that the
number ends there. Their probabilities are renormalised over what the grammar allowed, so punctuation that the schema
dictates costs nothing. `product` is the probability of the whole value, `minimum` its least certain token, `margin` how much
the best valid alternative with another value there scores below.
In: finished hypotheses.   Out: JSON pointer -> FieldConfidence, for every scalar ("" = the whole text if it is not JSON).
Knows nothing about: the search.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from toolkit.contracts import FieldConfidence, Hypothesis, Json, Tokenizer
from toolkit.schema import escape_pointer, value_key
from toolkit.validate.spans import value_spans


def field_confidence(
    hypothesis: Hypothesis, allowed: Sequence[float], tokenizer: Tokenizer, is_json: bool
) -> Mapping[str, FieldConfidence]:
    """allowed [T] are the renormalised log-probabilities of `hypothesis.token_ids` [T]. Margins are left open."""
    if not (is_json and hypothesis.valid):
        return {"": _of(list(allowed))}
    edges = [0]
    for token in hypothesis.token_ids:
        edges.append(edges[-1] + len(tokenizer.token_bytes(token)))
    text = hypothesis.text.encode()
    found: dict[str, FieldConfidence] = {}
    for path, (start, stop) in value_spans(hypothesis.text).items():
        touching = [i for i, (left, right) in enumerate(pairwise(edges)) if left < stop and right > start]
        after = touching[-1] + 1
        if text[start : start + 1] in b"-0123456789" and edges[after] == stop and after < len(allowed):
            touching.append(after)
        found[path] = _of([allowed[i] for i in touching])
    return found


def with_margins(one: Hypothesis, alternatives: Sequence[Hypothesis]) -> Hypothesis:
    """`one` with the margin of every field to the best other valid hypothesis that says something else there."""
    mine = scalars(one.value)
    filled: dict[str, FieldConfidence] = {}
    for path, confidence in one.confidence.items():
        others = [
            other.score
            for other in alternatives
            if other is not one and other.valid and scalars(other.value).get(path) != mine.get(path)
        ]
        filled[path] = replace(confidence, margin=one.score - max(others)) if others else confidence
    return replace(one, confidence=filled)


def scalars(value: Json, path: str = "") -> dict[str, Hashable]:
    """JSON pointer -> equality key of every leaf; empty containers are leaves. An absent path has no entry."""
    if isinstance(value, dict) and value:
        parts = [scalars(v, f"{path}/{escape_pointer(k)}") for k, v in value.items()]
    elif isinstance(value, list) and value:
        parts = [scalars(v, f"{path}/{i}") for i, v in enumerate(value)]
    else:
        return {path: value_key(value)}
    return {p: leaf for part in parts for p, leaf in part.items()}


def _of(logprobs: list[float]) -> FieldConfidence:
    return FieldConfidence(
        product=math.exp(math.fsum(logprobs)), minimum=math.exp(min(logprobs, default=0.0)), tokens=len(logprobs)
    )
