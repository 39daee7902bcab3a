"""Retried: second tries at records that failed, and how they take the place of the failures.

In: the files of a job, new lines for some of its failures.   Out: the same files with those lines in place, in index order.
Knows nothing about: why a record is tried again.
Invariants: `fold` can be stopped anywhere and done again: what it makes of the files and OUT.retry.jsonl is the same whichever of
them it had replaced already; OUT.retry.jsonl is deleted last. Constant memory.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from toolkit.contracts import Json
from toolkit.errors import EngineError
from toolkit.jobs.lines import Line, whole_lines
from toolkit.jobs.places import errors_path, lines_path, retry_path
from toolkit.jobs.terms import sync_folder
from toolkit.jobs.write import LineFile


class Retried:
    """Lines of second tries, appended in index order. Close, then `fold`."""

    def __init__(self, out: Path) -> None:
        self._file = LineFile(retry_path(out))

    def put(self, index: int, line: Mapping[str, Json]) -> None:
        """The new line of the record `index`; it failed again if it has a stage."""
        self._file.put({**line, "index": index})

    def close(self) -> None:
        """Everything is on the disk."""
        self._file.close()

    def __enter__(self) -> Retried:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def fold(out: Path) -> None:
    """Put second tries in the place of the failures they were made for. EngineError where the disk is full: nothing is lost."""
    journal = retry_path(out)
    if not journal.exists():
        return
    if next(whole_lines(journal), None) is not None:
        _rewrite(
            lines_path(out), _merged(whole_lines(lines_path(out)), (each for each in whole_lines(journal) if not each.stage))
        )
        _rewrite(errors_path(out), _remaining(whole_lines(errors_path(out)), whole_lines(journal)))
        sync_folder(out.parent)
    journal.unlink()


def _merged(old: Iterable[Line], new: Iterable[Line]) -> Iterator[Line]:
    """Both in index order; of two with the same index (an earlier fold was stopped) one."""
    last = -1
    for line in heapq.merge(old, new, key=lambda each: each.index):
        if line.index != last:
            yield line
        last = line.index


def _remaining(old: Iterable[Line], new: Iterable[Line]) -> Iterator[Line]:
    """Failures that stay: those not tried again, and the newer line of those that failed again."""
    tried = iter(new)
    next_tried = next(tried, None)
    for line in old:
        while next_tried is not None and next_tried.index < line.index:
            next_tried = next(tried, None)
        if next_tried is None or next_tried.index != line.index:
            yield line
        elif next_tried.stage:
            yield next_tried


def _rewrite(path: Path, lines: Iterator[Line]) -> None:
    fresh = path.with_name(path.name + ".new")
    try:
        with fresh.open("wb") as file:
            for line in lines:
                file.write(line.raw)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink()
        raise EngineError(f"output {path} cannot be rewritten: {error.strerror}", hint="--resume goes on") from None
