"""Store: the output of a job on disk, which survives being killed at any moment.

In: lines in input order, each with its `index`.   Out: the files of jobs.places; after a kill, the index to go on from.
Knows nothing about: engines, prompts, how a line comes about.
Invariants: every index below `position` is in exactly one of the two files and none at or above it is; a line is with the operating
system before the next is written, and on the disk a moment later (jobs.write); one writer at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from toolkit.contracts import Json
from toolkit.errors import EngineError
from toolkit.jobs.lines import Found, recover
from toolkit.jobs.places import check_free, errors_path, lines_path, writable
from toolkit.jobs.retried import Retried, fold
from toolkit.jobs.terms import claim, lock_terms
from toolkit.jobs.write import LineFile


class Store:
    """Open with `open_store`, then `add` or `fail` every record in order; `position` is the index of the next one.

    `dropped` counts whole lines that were cut off because one before them is gone: their records come again. `failures` counts by
    stage, `review` the values that somebody is to look at; both with earlier runs.
    """

    def __init__(self, out: Path, found: Found, lock: IO[bytes]) -> None:
        self.out = out
        self._lock = lock
        self._take(found)

    def _take(self, found: Found) -> None:
        self.position, self.dropped = found.position, found.dropped
        self.failures, self.review = found.failures, found.review
        self._lines = LineFile(lines_path(self.out))
        self._errors = LineFile(errors_path(self.out))

    def add(self, line: Mapping[str, Json]) -> None:
        """Write the line of a record that has a value."""
        self._lines.put({**line, "index": self.position})
        self.position += 1
        self.review += line.get("needs_review") is True

    def fail(self, line: Mapping[str, Json]) -> None:
        """Write the line of a record that has none; it has a `stage`."""
        self._errors.put({**line, "index": self.position})
        self.position += 1
        self.failures[line["stage"]] += 1

    def retried(self) -> Retried:
        """Where second tries go; `fold` takes them over."""
        return Retried(self.out)

    def fold(self) -> None:
        """Take over second tries: they are in the files, and counted, when this returns."""
        dropped = self.dropped
        self._close_files()
        self._take(_settled(self.out))
        self.dropped = dropped

    def close(self) -> None:
        """Close the files and let the lock go. EngineError where the last lines could not be written."""
        try:
            self._close_files()
        finally:
            with suppress(OSError):
                self._lock.close()

    def _close_files(self) -> None:
        try:
            self._lines.close()
        finally:
            self._errors.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.close()
        except EngineError:
            if kind is None:  # else the first error is the one to tell
                raise


def open_store(out: Path, terms: Mapping[str, Json], *, resume: bool, accept: bool = False) -> Store:
    """The store of a new job, or with `resume` of the one in OUT. UsageError where it is another job, or being written.

    `accept` takes over terms that differ in job and engine, and notes the change in OUT.job.json.
    """
    check_free(out, resume=resume)
    with writable(out):
        lock = lock_terms(out)
        try:
            lock = claim(out, terms, lock, accept=accept, position=lambda: _settled(out).position)
            return Store(out, _settled(out), lock)
        except BaseException:
            lock.close()
            raise


def _settled(out: Path) -> Found:
    fold(out)
    return recover(lines_path(out), errors_path(out))
