"""Lines: what stands whole in the files of a job, after any way of stopping.

In: a file of lines.   Out: its whole lines with index, stage and offset; files cut back to what belongs together.
Knows nothing about: engines, prompts, how a line comes about.
Invariants: constant memory; a tail without an end, or with zero bytes (a power cut leaves them), is no line; a line that no job
wrote is an error with its number, and then nothing is changed.
"""

from __future__ import annotations

import heapq
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path

from toolkit.errors import UsageError

_TAIL = re.compile(rb'(?:"needs_review": ?(true|false), ?)?"index": ?(\d{1,18})\}\n\Z')
_TAIL_BYTES = 64


@dataclass(frozen=True, slots=True)
class Line:
    """One whole line: its index, the stage it failed at ("" = it has a value), whether to be looked at, its bytes and their end."""

    index: int
    stage: str
    review: bool
    raw: bytes
    end: int


@dataclass(slots=True)
class Found:
    """What the files held: the index to go on from, lines cut off behind a gap, failures by stage, values to be looked at."""

    position: int = 0
    dropped: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    review: int = 0


def whole_lines(path: Path) -> Iterator[Line]:
    """The whole lines of a file, none where there is no file. UsageError for one that no job wrote."""
    if not path.exists():
        return
    end, last = 0, -1
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.endswith(b"\n") or b"\0" in raw:
                return
            end += len(raw)
            tail = _TAIL.search(raw, max(0, len(raw) - _TAIL_BYTES))
            if tail is None:
                raise UsageError(f"{path}:{number} was not written by a job", hint="name another output")
            index = int(tail[2])
            if index <= last:
                raise UsageError(
                    f"{path}:{number} has index {index} behind {last}: no job wrote it so", hint="name another output"
                )
            last = index
            yield Line(index, _stage(raw, path, number), tail[1] == b"true", raw, end)


def _stage(raw: bytes, path: Path, number: int) -> str:
    """The stage of a failure; only lines that may have one are parsed."""
    if b'"stage":' not in raw:
        return ""
    try:
        found = json.loads(raw).get("stage", "")
    except (ValueError, AttributeError, RecursionError):
        raise UsageError(f"{path}:{number} was not written by a job", hint="name another output") from None
    return str(found)


def recover(results: Path, errors: Path) -> Found:
    """Cut torn tails, and lines behind one that is gone, off both files."""
    found, ends = Found(), {results: 0, errors: 0}
    both = [zip(whole_lines(path), repeat(path), strict=False) for path in (results, errors)]
    for line, path in heapq.merge(*both, key=lambda each: each[0].index):
        index = line.index
        if index < found.position:
            raise UsageError(f"index {index} is in {results} and in {errors}: no job wrote it so", hint="name another output")
        if index > found.position:
            found.dropped += 1
            continue
        found.position += 1
        found.review += line.review
        ends[path] = line.end
        if path == errors:
            found.failures[line.stage] += 1
    for path, end in ends.items():
        if path.exists() and path.stat().st_size != end:
            with path.open("r+b") as file:
                file.truncate(end)
                os.fsync(file.fileno())
    return found
