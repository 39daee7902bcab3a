"""CSV: the rows of a table as text.

In: bytes, the name of the file, its delimiter and encoding.   Out: Units, one a row; the header.
Knows nothing about: which columns a record needs.
Invariants: a row that is none costs itself only; bytes that are not of the encoding, and lines cut short, travel with lone surrogates.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import partial
from typing import IO, Any

from toolkit.errors import InputError, UsageError
from toolkit.jobs import units
from toolkit.jobs.units import MAX_RAW_CHARS, Row, Unit, failed, lines

MAX_CELL_CHARS = csv.field_size_limit()  # the csv module's own limit, 128 KiB: raising it would change the whole process
DELIMITERS = {".csv": ",", ".tsv": "\t"}


def csv_units(name: str, file: IO[bytes], delimiter: str, encoding: str) -> Iterator[Unit]:
    """One unit a row behind the header."""
    table = _table(file, delimiter, encoding)
    header = _header(name, table)
    while True:
        start = table.line_num + 1
        where, own = f"{name}:{start}", f"line-{start}"
        try:
            row = next(table)
        except StopIteration:
            return
        except csv.Error as error:
            yield Unit(where, own, "", 0, partial(failed, f"not a row of the table: {error}"))
            continue
        if row:
            raw = delimiter.join(row)
            shown = raw[:MAX_RAW_CHARS].encode("utf-8", "replace").decode()
            yield Unit(where, own, shown, len(raw), partial(_row, header, row, encoding))


def csv_header(name: str, file: IO[bytes], delimiter: str, encoding: str) -> list[str]:
    """The names of the columns; UsageError where the first line does not name each once."""
    return _header(name, _table(file, delimiter, encoding))


def _table(file: IO[bytes], delimiter: str, encoding: str) -> Any:
    return csv.reader((_line(line, encoding) for line in lines(file)), delimiter=delimiter, strict=True)


def _line(line: bytes, encoding: str) -> str:
    return line.decode(encoding, "surrogateescape") + ("\udfff\n" if len(line) > units.MAX_RECORD_BYTES else "\n")


def _header(name: str, table: Iterator[list[str]]) -> list[str]:
    try:
        header = [each.removeprefix("\ufeff") for each in next(table, [])]
    except csv.Error as error:
        raise UsageError(f"the first line of {name} is no header: {error}") from None
    twice = sorted({each for each in header if header.count(each) > 1})
    if not header or "" in header or twice:
        raise UsageError(f"the header of {name} is {header}: it must name every column once")
    return header


def _row(header: list[str], row: list[str], encoding: str) -> Row:
    if len(row) != len(header):
        raise InputError(f"the row has {len(row)} cells: the header names {len(header)}")
    for name, cell in zip(header, row, strict=True):
        if any("\ud800" <= char <= "\udfff" for char in cell):
            raise InputError(
                f"cell {name!r} is not {encoding}, or its line has more than {units.MAX_RECORD_BYTES} bytes",
                hint="name another --encoding",
            )
    return dict(zip(header, row, strict=True))
