"""Line: a beam result as the JSON object of output lines and of `--json`.

In: a contracts.BeamResult.   Out: a dict of plain JSON with value valid score alternatives confidence confidence_detail usage timing.
Knows nothing about: files, engines.
Invariants: every number is finite (JSON has no other); field names are the command line's promise and stay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict

from toolkit.contracts import BeamResult, FieldConfidence, Hypothesis, Json, Violation


def result_fields(result: BeamResult) -> dict[str, Json]:
    """Everything a reader of one result needs, best hypothesis first in `alternatives`."""
    return {
        "value": result.value,
        "valid": result.valid,
        "score": finite(result.score),
        "sum_logprob": finite(result.sum_logprob),
        "text": result.text,
        "alternatives": [alternative_fields(item) for item in result.alternatives],
        "confidence": {path: item.product for path, item in result.confidence.items()},
        "confidence_detail": confidence_detail(result.confidence),
        "diversity": result.diversity,
        "partial": list(result.partial),
        "notes": list(result.notes),
        "usage": asdict(result.usage),
        "timing": asdict(result.timing),
    }


def alternative_fields(item: Hypothesis) -> dict[str, Json]:
    """One hypothesis of the n-best."""
    return {
        "value": item.value,
        "score": finite(item.score),
        "sum_logprob": finite(item.sum_logprob),
        "valid": item.valid,
        "text": item.text,
        "violations": [violation_fields(violation) for violation in item.violations],
    }


def confidence_detail(confidence: Mapping[str, FieldConfidence]) -> dict[str, Json]:
    """By path: product, minimum, tokens and margin (None where all of the n-best agree)."""
    return {
        path: {**asdict(item), "margin": None if item.margin is None else finite(item.margin)}
        for path, item in confidence.items()
    }


def violation_fields(item: Violation) -> dict[str, Json]:
    """One reason why a value is not valid."""
    return asdict(item)


def finite(number: float) -> float | None:
    """The number, or None for an infinite one (the score of what the model holds impossible)."""
    return number if math.isfinite(number) else None
