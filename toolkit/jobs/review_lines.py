"""Review, reading: the lines of a job and the texts they were made from, side by side.

In: OUT, and the input where it is not (any more) where the manifest says.   Out: (line, text) in input order, text None where unknown.
Knows nothing about: how they are shown.
Invariants: nothing is changed and no lock is taken, so that a running job can be looked at; constant memory; a text is only ever
put beside a line of its own index, out of an input with the very bytes that the job read.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from toolkit.contracts import Json
from toolkit.errors import InputError, UsageError
from toolkit.jobs.lines import whole_lines
from toolkit.jobs.places import errors_path, lines_path, manifest_path, terms_path
from toolkit.jobs.read import Record, Source, open_source
from toolkit.jobs.spec import make_spec

MAX_TERMS_BYTES = 16 << 20


def job_lines(out: Path) -> Iterator[dict[str, Any]]:
    """Every line of the job in OUT, failures (those with a `stage`) among them, by index. UsageError where OUT is no job's output."""
    if not lines_path(out).is_file():
        raise UsageError(f"output {out} does not exist", hint="toolkit extract INPUT --schema S --out OUT writes one")
    both = [whole_lines(path) for path in (lines_path(out), errors_path(out))]
    for line in heapq.merge(*both, key=lambda each: each.index):
        try:
            found = json.loads(line.raw, parse_constant=lambda name: None, parse_float=_float)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise UsageError(f"index {line.index} of {out} is no line of a job", hint="name the OUT of `toolkit extract`")
        yield found


def texts_of(out: Path, place: Path | None) -> tuple[Source | None, str]:
    """The input of the job in OUT, or None and why it is not known. UsageError where `place` is not what the job read."""
    terms = _read(terms_path(out))
    kept = _read(manifest_path(out)).get("input", {}).get("path")
    named = place or (Path(kept) if isinstance(kept, str) else None)
    if named is None:
        return None, "the input was a stream, or is not known: --input FILE names it"
    if place is None and not named.exists():
        return None, f"the input {named} is not there any more: --input FILE says where it is"
    try:
        source = open_source(named, make_spec(terms["job"]))
    except (KeyError, TypeError):
        raise UsageError(f"{terms_path(out)} is no job's", hint="name the OUT of `toolkit extract`") from None
    if source.digest() != terms.get("input", {}).get("sha256"):
        if place is None:
            return None, f"the input {named} has changed since: --input FILE names one that has not"
        raise UsageError(f"input {named} is not what the job in {out} read: it has other bytes", hint="name that one")
    return source, ""


def side_by_side(out: Path, source: Source | None) -> Iterator[tuple[dict[str, Any], str | None]]:
    """Lines, each with the text of the record at its index."""
    records = iter(source) if source is not None else iter(())
    record = next(records, None)
    for line in job_lines(out):
        while record is not None and record.index < line["index"]:
            record = next(records, None)
        ours = record if record is not None and record.index == line["index"] and isinstance(record, Record) else None
        told = line.get("text") if "stage" in line else None  # a failure keeps its text
        yield line, ours.text if ours is not None else told if isinstance(told, str) else None


def _float(text: str) -> float | None:
    """A number that JSON can be written with again; None for one beyond all."""
    number = float(text)
    return number if math.isfinite(number) else None


def _read(path: Path) -> Mapping[str, Json]:
    """The object in one of the job's small files; {} where there is none."""
    if not path.is_file():
        return {}
    if path.stat().st_size > MAX_TERMS_BYTES:
        raise InputError(f"{path} has {path.stat().st_size} bytes: at most {MAX_TERMS_BYTES} are read")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise InputError(f"{path} is damaged: it is no JSON", hint="the job that writes it, with --resume, mends it") from None
    return found if isinstance(found, dict) else {}
