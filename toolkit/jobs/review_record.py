"""Review, one record: a line of a job and its text, to what the page shows of them.

In: a line, a text or None.   Out: plain JSON of bounded size, with every key that page/page.js reads.
Knows nothing about: files, HTML.
Invariants: whatever is left out for its size is counted; offsets of spans are those of the page's language (UTF-16 units). Lines of
other versions may lack keys, or have more: what is missing is not shown, what is not known is shown as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from toolkit.contracts import Json
from toolkit.jobs.pointer import parts
from toolkit.results import json_text
from toolkit.schema import escape_pointer

MAX_TEXT = 20_000
MAX_FIELDS = 300
MAX_ALTERNATIVES = 16
MAX_REST = 30_000
MOST = 1e300
MAX_SHOWN = 2_000  # characters of one value
OWN = ("value", "alternatives", "text")  # of a line: shown in their own places


def page_record(line: Mapping[str, Any], text: str | None, *, max_text: int = MAX_TEXT) -> dict[str, Json]:
    """What the page shows of one line."""
    failed = "stage" in line
    found = [] if failed else list(islice(cells(line.get("value")), MAX_FIELDS + 1))
    more = sum(1 for _ in cells(line.get("value"))) - MAX_FIELDS if len(found) > MAX_FIELDS else 0
    timing = line.get("timing")
    return {
        "index": line["index"],
        "id": str(line.get("id", "")),
        "where": line.get("where"),
        "kind": kind_of(line),
        "stage": str(line.get("stage", "")),
        "reason": str(line.get("reason", "")),
        "raw": str(line.get("raw", ""))[:MAX_SHOWN],
        "reasons": [_reason(each) for each in listing(line.get("review_reasons"))],
        "text": None if text is None else text[:max_text],
        "length": len(text or ""),
        "shown": min(len(text or ""), max_text),
        "value": _bounded(line.get("value")),
        "fields": [_field(path, value, line, text, max_text) for path, value in found[:MAX_FIELDS]],
        "more": more,
        "score": number(line.get("score")),
        "seconds": number(timing.get("e2e_s")) if isinstance(timing, dict) else None,
        "alternatives": [_alternative(each) for each in listing(line.get("alternatives"))[:MAX_ALTERNATIVES]],
        "rest": _rest(line),
    }


def kind_of(line: Mapping[str, Any]) -> str:
    """error, review or ok."""
    return "error" if "stage" in line else "review" if line.get("needs_review") is True else "ok"


def cells(value: Json, pointer: str = "") -> Iterator[tuple[str, Json]]:
    """(pointer, value) of every scalar and every empty container, in their order."""
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from cells(item, f"{pointer}/{escape_pointer(name)}")
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from cells(item, f"{pointer}/{index}")
    else:
        yield pointer, value


def _field(path: str, value: Json, line: Mapping[str, Any], text: str | None, most: int) -> dict[str, Json]:
    shown = value[:MAX_SHOWN] + "…" if isinstance(value, str) and len(value) > MAX_SHOWN else value
    field: dict[str, Json] = {"path": path, "value": shown, "sure": number(mapping(line.get("confidence")).get(path))}
    field["flagged"] = any(mapping(reason).get("path") == path for reason in listing(line.get("review_reasons")))
    spans = mapping(line.get("spans"))
    if path in spans:  # without an entry nothing was looked for, which is not the same as nothing found
        field["span"] = _span(spans[path], text, most)
        field["how"] = _how(mapping(line.get("span_detail")).get(path), mapping(line.get("provenance")).get(path))
        if field["span"] is None and spans[path] is not None:
            field.pop("span")  # found, but not in what is shown
    return field


def _span(span: Json, text: str | None, most: int) -> list[int] | None:
    """[start, end] in UTF-16 units of the text shown; None where there is none in it."""
    if text is None or not (isinstance(span, list) and len(span) == 2 and all(type(each) is int for each in span)):
        return None
    start, end = span
    if not 0 <= start < end <= min(len(text), most):
        return None
    before = len(text[:start].encode("utf-16-le", "surrogatepass")) // 2
    return [before, before + len(text[start:end].encode("utf-16-le", "surrogatepass")) // 2]


def _how(detail: Json, piece: Json) -> str:
    """How a span was found, and in which piece of a text in pieces: "exact", "fuzzy 0.12 (its distance), piece 3"."""
    found = mapping(detail)
    distance = number(found.get("distance"))
    where = f", piece {piece + 1}" if type(piece) is int else ""
    return str(found.get("method", "found")) + (f" {distance:.2g}" if distance else "") + where


def _reason(reason: Json) -> str:
    if not isinstance(reason, dict):
        return str(reason)
    place = " › ".join(parts(str(reason.get("path", "")))) or "the whole"
    sure, threshold = number(reason.get("confidence")), number(reason.get("threshold"))
    measured = f" ({sure:.2f}, below {threshold:g})" if sure is not None and threshold is not None else ""
    return f"{place}: {reason.get('reason', '')}{measured}"


def _alternative(item: Json) -> dict[str, Json]:
    other = mapping(item)
    violations = listing(other.get("violations"))
    why = mapping(violations[0]).get("message", "") if violations else ""
    return {
        "value": _bounded(other.get("value")),
        "score": number(other.get("score")),
        "valid": other.get("valid") is not False,
        "why": str(why)[:MAX_SHOWN],
    }


def _rest(line: Mapping[str, Any]) -> Json:
    rest = {name: value for name, value in line.items() if name not in OWN}
    return _bounded(rest)


def _bounded(value: Json) -> Json:
    """The value itself, or what stands for one too large to be shown."""
    size = len(json_text(value))
    return value if size <= MAX_REST else f"({size} characters: see the file)"


def number(value: Json) -> float | None:
    """The number itself; None for what is none, and for an integer beyond all floats."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -MOST < value < MOST:
        return None
    return float(value)


def mapping(value: Json) -> dict[str, Any]:
    """The object itself, an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def listing(value: Json) -> list[Any]:
    """The list itself, an empty one for anything else."""
    return value if isinstance(value, list) else []
