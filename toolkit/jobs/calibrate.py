"""Calibrate: are the confidences of a job's values worth what they say? Values beside labels, field by field.

    reliability table    confidences in `bins` equal steps from 0 to 1: how many, their mean, the share that was right
    ece                  mean distance between confidence and share right, weighted by count (1706.04599, eq. 3)
    brier                mean of (confidence - right)^2
    threshold            the least confidence from which on at least `target` of the values are right (what review_below can say)

In: OUT of a job, labels: JSON lines {id, value}.   Out: plain JSON.
Knows nothing about: engines. A field is a JSON pointer with * for indices; a value is right where the label has the same JSON value at
the same place. Records without a label, and places without a confidence, are counted and left out. Memory: the labels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolkit.contracts import Json, require
from toolkit.errors import InputError, UsageError
from toolkit.jobs.pointer import general, leaves
from toolkit.jobs.review_lines import job_lines
from toolkit.jobs.units import BOM, decoded, lines
from toolkit.schema import parse_json, value_key

_ABSENT = object()

Pair = tuple[float, bool]  # confidence, right


def calibration(out: Path, labels: Path, *, bins: int = 10, target: float = 0.95) -> dict[str, Json]:
    """{records, labelled, without_confidence, fields: {field: {count, accuracy, confidence, ece, brier, threshold, bins}}}.

    UsageError where there is no such job or no label; InputError for a line of the labels that is none.
    """
    require(1 <= bins <= 100, "bins", bins, "an integer from 1 to 100")
    require(0 < target <= 1, "target", target, "a number in (0, 1]")
    known = _labels(labels)
    fields: dict[str, list[Pair]] = defaultdict(list)
    counts = {"records": 0, "labelled": 0, "without_confidence": 0}
    for record in job_lines(out):
        if "stage" in record:
            continue
        counts["records"] += 1
        label = known.get(str(record.get("id")))
        if label is not None:
            counts["labelled"] += 1
            counts["without_confidence"] += _compare(record, label, fields)
    if not counts["labelled"]:
        raise UsageError(f"no id of {labels} is in {out}: there is nothing to compare", hint="labels are lines {id, value}")
    return {
        **counts,
        "target": target,
        "fields": {name: _report(pairs, bins, target) for name, pairs in sorted(fields.items())},
    }


def _labels(path: Path) -> dict[str, dict[str, Json]]:
    """The leaves of every label by id."""
    found: dict[str, dict[str, Json]] = {}
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(lines(file), start=1):
                raw = raw.removeprefix(BOM) if number == 1 else raw
                if raw.strip():
                    name, value = _label(raw, f"{path}:{number}")
                    if name in found:
                        raise InputError(f"{path}:{number}: id {name!r} has a label already")
                    found[name] = dict(leaves(value))
    except OSError as error:
        raise UsageError(f"labels {path} cannot be read: {error.strerror}") from None
    return found


def _label(raw: bytes, where: str) -> tuple[str, Json]:
    try:
        label = parse_json(decoded(raw, "utf-8"))
    except InputError as error:
        raise InputError(f"{where}: {error.message}") from None
    if not isinstance(label, dict) or not {"id", "value"} <= label.keys():
        raise InputError(f"{where}: a label is an object with id and value")
    if isinstance(label["id"], bool) or not isinstance(label["id"], str | int):
        raise InputError(f"{where}: the id is a {type(label['id']).__name__}: a string or an integer")
    return str(label["id"]), label["value"]


def _compare(record: Mapping[str, Json], label: Mapping[str, Json], fields: dict[str, list[Pair]]) -> int:
    """Add a record's values to their fields; how many had no confidence."""
    missing = 0
    told = record.get("confidence")
    for path, value in leaves(record.get("value")):
        sure = told.get(path) if isinstance(told, dict) else None
        if not isinstance(sure, int | float) or not 0 <= sure <= 1:
            missing += 1
            continue
        expected = label.get(path, _ABSENT)
        fields[general(path)].append((sure, expected is not _ABSENT and value_key(expected) == value_key(value)))
    return missing


def _report(pairs: Sequence[Pair], bins: int, target: float) -> dict[str, Json]:
    count = len(pairs)
    table = [_bin(pairs, index, bins) for index in range(bins)]
    gaps = [row["count"] * abs(row["confidence"] - row["accuracy"]) for row in table if row["count"]]
    return {
        "count": count,
        "accuracy": sum(right for _, right in pairs) / count,
        "confidence": sum(sure for sure, _ in pairs) / count,
        "ece": sum(gaps) / count,
        "brier": sum((sure - right) ** 2 for sure, right in pairs) / count,
        "threshold": threshold(pairs, target),
        "bins": table,
    }


def _bin(pairs: Sequence[Pair], index: int, bins: int) -> dict[str, Json]:
    inside = [(sure, right) for sure, right in pairs if min(int(sure * bins), bins - 1) == index]
    row: dict[str, Json] = {
        "from": index / bins,
        "to": (index + 1) / bins,
        "count": len(inside),
        "confidence": None,
        "accuracy": None,
    }
    if inside:
        row["confidence"] = sum(sure for sure, _ in inside) / len(inside)
        row["accuracy"] = sum(right for _, right in inside) / len(inside)
    return row


def threshold(pairs: Sequence[Pair], target: float) -> float | None:
    """The least confidence c such that of the values with at least c a share of `target` is right; None where there is none."""
    best, right = None, 0
    ordered = sorted(pairs, key=lambda each: -each[0])
    for count, (sure, good) in enumerate(ordered, start=1):
        right += good
        last_of_its_kind = count == len(ordered) or ordered[count][0] != sure
        if last_of_its_kind and right >= target * count:
            best = sure
    return best
