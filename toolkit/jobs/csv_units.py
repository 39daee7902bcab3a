"""CSV: the rows of a table with a header, one at a time.

In: bytes of a file, its delimiter.   Out: Units, one a row, and the header.
Knows nothing about: which columns a record needs.
Invariants: a row that is none costs its first line only: a quote that is never closed does not swallow the rows behind it, whose lines
are read again (each at most MOST_READS times, so that the work stays linear). No row above the size limit is held. Bytes that are not
of the encoding, and lines cut short, travel with lone surrogates.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import IO

from toolkit.errors import InputError, UsageError
from toolkit.jobs import units
from toolkit.jobs.units import MAX_RAW_CHARS, Row, Unit, check_utf16, failed, lines

MAX_CELL_CHARS = csv.field_size_limit()  # the csv module's own limit, 128 KiB: raising it would change the whole process
DELIMITERS = {".csv": ",", ".tsv": "\t"}
MOST_READS = 8  # of one line


def csv_units(name: str, file: IO[bytes], delimiter: str, encoding: str) -> Iterator[Unit]:
    """One unit a row behind the header."""
    feed = _Feed(file, encoding)
    table = csv.reader(feed, delimiter=delimiter, strict=True)
    header = _header(name, table)
    while True:
        start = feed.begin()
        where, own = f"{name}:{start}", f"line-{start}"
        try:
            row = next(table)
        except StopIteration:
            return
        except csv.Error as error:
            raw, lost = feed.again()
            also = f", and {lost} lines behind it with it" if lost else ""
            yield Unit(where, own, _shown(raw), len(raw), partial(failed, f"not a row of the table: {error}{also}"))
            table = csv.reader(feed, delimiter=delimiter, strict=True)
            continue
        if row:
            raw = delimiter.join(row)
            yield Unit(where, own, _shown(raw), len(raw), partial(_row, header, row, feed.taken, encoding))


def csv_header(name: str, file: IO[bytes], delimiter: str, encoding: str) -> list[str]:
    """The names of the columns; UsageError where the first line does not name each once."""
    return _header(name, csv.reader(_Feed(file, encoding), delimiter=delimiter, strict=True))


class _Feed:
    """Lines of a file as text, for a csv.reader; those of a row that failed are given again."""

    def __init__(self, file: IO[bytes], encoding: str) -> None:
        self._file, self._encoding = lines(file), encoding
        self._waiting: deque[tuple[str, int]] = deque()  # lines to be read again, and how often they were
        self._row: list[tuple[str, int]] = []
        self._chars = 0
        self._given = 0

    @property
    def taken(self) -> int:
        """Lines of the row so far."""
        return len(self._row)

    def begin(self) -> int:
        """A row begins: the number of its line."""
        self._row, self._chars = [], 0
        return self._given + 1

    def again(self) -> tuple[str, int]:
        """The row failed: its first line, which is lost, and how many behind it are, having been read too often."""
        (first, _), *rest = self._row or [("", 0)]
        kept = [(line, reads + 1) for line, reads in rest if reads + 1 < MOST_READS]
        lost = len(rest) - len(kept)
        self._waiting.extendleft(reversed(kept))
        self._given -= len(kept)
        return first, lost

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        if self._chars > units.MAX_RECORD_BYTES:
            raise csv.Error(f"it has more than {units.MAX_RECORD_BYTES} bytes")
        line, reads = self._waiting.popleft() if self._waiting else (self._decoded(next(self._file)), 0)
        self._row.append((line, reads))
        self._chars += len(line)
        self._given += 1
        return line

    def _decoded(self, line: bytes) -> str:
        if self._given == 0:
            check_utf16(line, self._encoding)
        cut = "\udfff\n" if len(line) > units.MAX_RECORD_BYTES else "\n"
        return line.decode(self._encoding, "surrogateescape") + cut


def _header(name: str, table: Iterator[list[str]]) -> list[str]:
    try:
        header = [each.removeprefix("\ufeff") for each in next(table, [])]
    except csv.Error as error:
        raise UsageError(f"the first line of {name} is no header: {error}") from None
    twice = sorted({each for each in header if header.count(each) > 1})
    if not header or "" in header or twice:
        raise UsageError(f"the header of {name} is {header}: it must name every column once")
    return header


def _row(header: list[str], row: list[str], took: int, encoding: str) -> Row:
    if len(row) != len(header):
        over = f" over {took} lines (a quote that is not closed?)" if took > 1 else ""
        raise InputError(f"the row has {len(row)} cells{over}: the header names {len(header)}")
    for name, cell in zip(header, row, strict=True):
        if any("\ud800" <= char <= "\udfff" for char in cell):
            raise InputError(
                f"cell {name!r} is not {encoding}, or its line has more than {units.MAX_RECORD_BYTES} bytes",
                hint="name another --encoding",
            )
    return dict(zip(header, row, strict=True))


def _shown(raw: str) -> str:
    return raw[:MAX_RAW_CHARS].rstrip("\n").encode("utf-8", "replace").decode()
