"""Input: the records of a JSONL file, a CSV or TSV file, or a folder of text files, one at a time.

In: a path and a JobSpec.   Out: Record or BadRecord, in input order, numbered from 0 without gaps.
Knows nothing about: schemas, prompts, engines, output.
Invariants: reading twice gives the same records; a bad line costs that line only and is reported by file and line number; no line,
cell or file above its size limit is held in memory; ids are unique (a second record with the same id is a BadRecord). In a folder
only regular files are opened; links, devices, pipes and what cannot be read are one BadRecord each.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from toolkit.contracts import Json
from toolkit.errors import InputError, UsageError
from toolkit.jobs.folder import open_regular, text_name, walk
from toolkit.jobs.spec import JobSpec
from toolkit.schema import parse_json

MAX_RECORD_BYTES = 8 << 20
MAX_CELL_CHARS = csv.field_size_limit()  # the csv module's own limit, 128 KiB: raising it would change the whole process
MAX_RAW_CHARS = 2000
MAX_ID_CHARS = 500
DELIMITERS = {".csv": ",", ".tsv": "\t"}

Row = Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Record:
    """One document: its place in the input, its id, where it stands (file:line), its text, and all its fields."""

    index: int
    id: str
    where: str
    text: str
    row: Row


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A place in the input that is no record: why, and the raw text there (shortened)."""

    index: int
    id: str
    where: str
    reason: str
    raw: str


@dataclass(frozen=True, slots=True)
class _Unit:
    where: str
    name: str  # the id where the record brings none
    raw: str
    parse: Callable[[], Row]


@dataclass(frozen=True, slots=True)
class Source:
    """An input that can be read any number of times. `open_source` makes one."""

    path: Path
    spec: JobSpec
    units: Callable[[], Iterator[_Unit]]
    files: tuple[Path, ...]

    def digest(self) -> str:
        """sha256 over the names and bytes of all files; of one that cannot be a record, the name and the reason."""
        total = hashlib.sha256()
        for path in self.files:
            total.update(os.fsencode(path.relative_to(self.path)) + b"\0")
            try:
                with open_regular(path) if self.path.is_dir() else path.open("rb") as file:
                    total.update(hashlib.file_digest(file, "sha256").digest())
            except InputError as error:
                total.update(b"not read: " + error.message.encode() + b"\0")
        return total.hexdigest()

    def count(self) -> int:
        """How many records (bad ones too) iteration will give."""
        return sum(1 for _ in self.units())

    def __iter__(self) -> Iterator[Record | BadRecord]:
        seen: dict[str, str] = {}
        for index, unit in enumerate(self.units()):
            try:
                yield _record(index, unit, self.spec, seen)
            except InputError as error:
                yield BadRecord(index, unit.name, unit.where, str(error), unit.raw)


def open_source(path: Path, spec: JobSpec) -> Source:
    """The records of `path`. UsageError where it does not exist or cannot be read, has another ending or no such column, or is empty."""
    try:
        return _source(path, spec)
    except OSError as error:
        raise UsageError(f"input {path} cannot be read: {error.strerror}") from None


def _source(path: Path, spec: JobSpec) -> Source:
    if path.is_dir():
        files = tuple(walk(path))
        source = Source(path, spec, partial(_folder_units, path, files, spec), files)
    elif not path.is_file():
        if not path.exists() and str(path) != "-":
            raise UsageError(f"input {path} does not exist")
        raise UsageError(
            f"input {path} is a pipe or a device: a job reads its input more than once",
            hint="save it to a file that ends in .jsonl",
        )
    elif path.suffix in (".jsonl", ".ndjson"):
        source = Source(path, spec, partial(_jsonl_units, path, spec.encoding), (path,))
    elif path.suffix in DELIMITERS:
        _check_columns(path, spec)
        source = Source(path, spec, partial(_csv_units, path, spec.encoding), (path,))
    else:
        raise UsageError(
            f"input {path} ends in {path.suffix!r}: it must be .jsonl, .ndjson, .csv, .tsv or a folder of text files"
        )
    if next(source.units(), None) is None:
        raise UsageError(f"input {path} holds no record")
    return source


def _record(index: int, unit: _Unit, spec: JobSpec, seen: dict[str, str]) -> Record:
    row = unit.parse()
    record_id = _id_of(row, unit, spec.id_field)
    if record_id in seen:
        raise InputError(f"id {record_id!r} was already used at {seen[record_id]}")
    seen[record_id] = unit.where
    if spec.text_field not in row:
        raise InputError(f"text field {spec.text_field!r} is missing: the record has {', '.join(sorted(row)) or 'no fields'}")
    text = row[spec.text_field]
    if not isinstance(text, str) or not text.strip():
        raise InputError(
            f"text field {spec.text_field!r} is {'empty' if isinstance(text, str) else type(text).__name__}, not text"
        )
    return Record(index, record_id, unit.where, text, row)


def _id_of(row: Row, unit: _Unit, field: str | None) -> str:
    if field is None and "id" not in row:
        return unit.name
    if (name := field or "id") not in row:
        raise InputError(f"id field {name!r} is missing: the record has {', '.join(sorted(row)) or 'no fields'}")
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, str | int) or not 0 < len(str(value)) <= MAX_ID_CHARS:
        raise InputError(
            f"id field {name!r} is {str(value)[:40]!r}: it must be a string of 1 to {MAX_ID_CHARS} characters or an integer"
        )
    return str(value)


def _shown(raw: bytes) -> str:
    return raw[: 4 * MAX_RAW_CHARS].decode("utf-8", "replace")[:MAX_RAW_CHARS]


def _fail(message: str) -> Row:
    raise InputError(message)


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Lines without their end; one above the limit is cut to just above it and its rest skipped."""
    while line := file.readline(MAX_RECORD_BYTES + 1):
        tail = line
        while not tail.endswith(b"\n") and len(tail) > MAX_RECORD_BYTES:
            tail = file.readline(MAX_RECORD_BYTES + 1)
        yield line.rstrip(b"\r\n")


def _jsonl_units(path: Path, encoding: str) -> Iterator[_Unit]:
    with path.open("rb") as file:
        for number, line in enumerate(_lines(file), start=1):
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if line.strip():
                yield _Unit(
                    f"{text_name(path.name)}:{number}", f"line-{number}", _shown(line), partial(_json_row, line, encoding)
                )


def _json_row(line: bytes, encoding: str) -> Row:
    value = parse_json(_decoded(line, encoding))
    if not isinstance(value, dict):
        raise InputError(f"the line holds a {type(value).__name__}: a record is an object")
    return value


def _decoded(raw: bytes, encoding: str) -> str:
    if len(raw) > MAX_RECORD_BYTES:
        raise InputError(f"the record has more than {MAX_RECORD_BYTES} bytes")
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(f"byte {error.start} is not {encoding}: {error.reason}", hint="name another --encoding") from None


def _csv_units(path: Path, encoding: str) -> Iterator[_Unit]:
    """Bytes that are not of the encoding, and lines cut short, travel with lone surrogates: they cost their own row only."""
    with path.open("rb") as file:
        table = _table(file, path, encoding)
        header = _csv_header(path, table)
        while True:
            start = table.line_num + 1
            where, name = f"{text_name(path.name)}:{start}", f"line-{start}"
            try:
                row = next(table)
            except StopIteration:
                return
            except csv.Error as error:
                yield _Unit(where, name, "", partial(_fail, f"not a row of the table: {error}"))
                continue
            if row:
                raw = DELIMITERS[path.suffix].join(row)[:MAX_RAW_CHARS].encode("utf-8", "replace").decode()
                yield _Unit(where, name, raw, partial(_csv_row, header, row, encoding))


def _table(file: IO[bytes], path: Path, encoding: str) -> Any:
    lines = (_csv_line(line, encoding) for line in _lines(file))
    return csv.reader(lines, delimiter=DELIMITERS[path.suffix], strict=True)


def _check_columns(path: Path, spec: JobSpec) -> None:
    """UsageError where the table lacks a column that every record needs: it would fail each of them."""
    with path.open("rb") as file:
        header = _csv_header(path, _table(file, path, spec.encoding))
    needed = {"text_field": spec.text_field, "id_field": spec.id_field, "schema_field": spec.schema_field}
    wanted = [*needed.items(), *(("fields", name) for name in spec.fields)]
    for option, name in wanted:
        if name is not None and name not in header:
            raise UsageError(
                f"{option} = {name!r} is not a column of {path}: its header names {', '.join(header)}",
                hint=f"--{option.replace('_', '-')}, or the job file" if option != "fields" else "see fields in the job file",
            )


def _csv_line(line: bytes, encoding: str) -> str:
    return line.decode(encoding, "surrogateescape") + ("\udfff\n" if len(line) > MAX_RECORD_BYTES else "\n")


def _csv_header(path: Path, table: Iterator[list[str]]) -> list[str]:
    try:
        header = [name.removeprefix("\ufeff") for name in next(table, [])]
    except csv.Error as error:
        raise UsageError(f"the first line of {path} is no header: {error}") from None
    twice = sorted({name for name in header if header.count(name) > 1})
    if not header or "" in header or twice:
        raise UsageError(f"the header of {path} is {header}: it must name every column once")
    return header


def _csv_row(header: list[str], row: list[str], encoding: str) -> Row:
    if len(row) != len(header):
        raise InputError(f"the row has {len(row)} cells: the header names {len(header)}")
    for name, cell in zip(header, row, strict=True):
        if any("\ud800" <= char <= "\udfff" for char in cell):
            raise InputError(
                f"cell {name!r} is not {encoding}, or its line has more than {MAX_RECORD_BYTES} bytes",
                hint="name another --encoding",
            )
    return dict(zip(header, row, strict=True))


def _folder_units(folder: Path, files: tuple[Path, ...], spec: JobSpec) -> Iterator[_Unit]:
    for path in files:
        name = text_name(path.relative_to(folder).as_posix())
        yield _Unit(name, name, "", partial(_file_row, path, spec))


def _file_row(path: Path, spec: JobSpec) -> Row:
    try:
        with open_regular(path) as file:
            raw = file.read(MAX_RECORD_BYTES + 1)
    except OSError as error:
        raise InputError(f"it cannot be read: {error.strerror}") from None
    if b"\0" in raw:
        raise InputError("the file holds a zero byte: it is not text")
    return {spec.text_field: _decoded(raw, spec.encoding).removeprefix("\ufeff")}
