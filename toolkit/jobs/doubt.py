"""Doubt: why somebody should look at a value.

In: a value's confidences and grounding, the thresholds of the job.   Out: reasons, each with its place.
Knows nothing about: models, files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from toolkit.contracts import Json
from toolkit.jobs.pointer import EVERYWHERE, leaves, lookup


def doubts(
    value: Json, confidence: Mapping[str, float], thresholds: Mapping[str, float], missing: Sequence[str]
) -> list[dict[str, Json]]:
    """Reasons as plain JSON: {path, reason, confidence, threshold} or {path, reason}; [] = nothing to look at."""
    found: list[dict[str, Json]] = [{"path": path, "reason": "not found in the text"} for path in missing]
    for path, _ in leaves(value) if thresholds else ():
        declared = lookup(thresholds, path)
        if declared is None:
            continue
        pattern, threshold = declared
        sure = confidence.get(path)
        if sure is None and pattern != EVERYWHERE:
            found.append({"path": path, "reason": "its confidence is not known"})
        elif sure is not None and sure < threshold:
            found.append({"path": path, "reason": "low confidence", "confidence": sure, "threshold": threshold})
    return found
