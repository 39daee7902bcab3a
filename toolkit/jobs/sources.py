"""Sources: where units come from, by what the place is.

    .jsonl .ndjson (.gz .zst)   JSON lines             -         JSON lines from stdin, once
    .csv .tsv (.gz .zst)        tables with a header   folder    text files, each a record
    .parquet                    Parquet                object    DataFrame, Arrow table, dataset, list or iterator of mappings

In: a place or an object, and a JobSpec.   Out: an Origin.
Knows nothing about: records.
Invariants: in a folder only regular files are opened; what lacks a column that every record needs is refused at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any

from toolkit.errors import InputError, UsageError
from toolkit.jobs import row_units
from toolkit.jobs import units as cut
from toolkit.jobs.csv_units import DELIMITERS, csv_header, csv_units
from toolkit.jobs.folder import open_regular, text_name, walk
from toolkit.jobs.packed import bare, unpacked
from toolkit.jobs.spec import JobSpec
from toolkit.jobs.units import Row, Unit, decoded, jsonl_units

STDIN = "-"
ENDINGS = ".jsonl, .ndjson, .csv, .tsv (also .gz, .zst), .parquet, a folder of text files, or - for JSON lines from stdin"


@dataclass(frozen=True, slots=True)
class Origin:
    """An input that can be gone through: `units` again and again where `repeatable`, else once. `path` None = no file."""

    name: str
    path: Path | None
    units: Callable[[], Iterator[Unit]]
    digest: Callable[[], str | None]
    count: Callable[[], int | None]
    repeatable: bool = True


def origin_of(place: object, spec: JobSpec) -> Origin:
    """UsageError where the place does not exist, cannot be read, has another ending or no such column, or holds nothing."""
    if not isinstance(place, str | os.PathLike):
        return _nonempty(_object(place, spec))
    path = Path(place)
    try:
        return _nonempty(_stdin(spec) if str(path) == STDIN else _place(path, spec))
    except OSError as error:
        raise UsageError(f"input {path} cannot be read: {error.strerror}") from None
    except InputError as error:
        raise UsageError(error.message, hint=error.hint) from None


def _nonempty(origin: Origin) -> Origin:
    units = origin.units()
    first = next(units, None)
    if first is None:
        raise UsageError(f"input {origin.name} holds no record")
    if origin.repeatable:
        return origin
    return Origin(origin.name, origin.path, _Once(origin.name, chain([first], units)), origin.digest, origin.count, False)


class _Once:
    """Units of a stream."""

    def __init__(self, name: str, units: Iterator[Unit]) -> None:
        self._name, self._units = name, units
        self._given = False

    def __call__(self) -> Iterator[Unit]:
        if self._given:
            raise UsageError(
                f"input {self._name} is a stream: it can be read once", hint="save it to a file that ends in .jsonl"
            )
        self._given = True
        return self._units


def _stdin(spec: JobSpec) -> Origin:
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None:
        raise UsageError("input - is stdin, which is closed")
    return _stream(STDIN, partial(jsonl_units, "stdin", stream, spec.encoding))


def _stream(name: str, units: Callable[[], Iterator[Unit]]) -> Origin:
    return Origin(name, None, units, lambda: None, lambda: None, False)


def _object(rows: object, spec: JobSpec) -> Origin:
    name = f"of type {type(rows).__name__}"
    columns = row_units.object_columns(rows)
    if columns is None and not hasattr(rows, "__iter__"):
        raise UsageError(f"input {name} gives no rows: a path, a DataFrame, an Arrow table, a dataset, or mappings")
    if columns is not None:
        _check_columns(columns, f"input {name}", spec)
    units = partial(row_units.object_units, rows, "row", _wanted(spec))
    if not row_units.repeatable(rows):
        return _stream(name, units)
    return Origin(name, None, units, partial(_units_digest, units), lambda: len(rows))  # type: ignore[arg-type]


def _place(path: Path, spec: JobSpec) -> Origin:
    if path.is_dir():
        files = tuple(walk(path))
        units = partial(_folder_units, path, files, spec)
        return Origin(str(path), path, units, partial(_folder_digest, path, files), lambda: len(files))
    if not path.is_file():
        if not path.exists():
            raise UsageError(f"input {path} does not exist")
        raise UsageError(
            f"input {path} is a pipe or a device: a job reads its input more than once",
            hint="save it to a file that ends in .jsonl, or give - and read it from stdin",
        )
    ending = bare(path).suffix
    if path.suffix == ".parquet":
        _check_columns(row_units.parquet_columns(path), str(path), spec)
        units = partial(row_units.parquet_units, path, text_name(path.name), _wanted(spec))
        digest = partial(_unchanged, path, partial(_file_digest, path), {})
        return Origin(str(path), path, units, digest, partial(row_units.parquet_count, path))
    if ending in DELIMITERS:
        with _opened(path) as file:
            header = csv_header(str(path), file, DELIMITERS[ending], spec.encoding)
        _check_columns(header, str(path), spec)
    elif ending not in (".jsonl", ".ndjson"):
        raise UsageError(f"input {path} ends in {path.suffix!r}: it must be {ENDINGS}")
    units = partial(_file_units, path, spec)
    count = partial(_unchanged, path, lambda: sum(1 for _ in units()), {})
    return Origin(str(path), path, units, partial(_unchanged, path, partial(_file_digest, path), {}), count)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with unpacked(path.open("rb"), path) as file:
            yield file
    except InputError as error:
        raise InputError(f"input {path}: {error.message}", hint=error.hint) from None
    except OSError as error:
        raise InputError(f"input {path} cannot be read: {error.strerror or error}") from None


def _file_units(path: Path, spec: JobSpec) -> Iterator[Unit]:
    name, ending = text_name(path.name), bare(path).suffix
    with _opened(path) as file:
        if ending in DELIMITERS:
            yield from csv_units(name, file, DELIMITERS[ending], spec.encoding)
        else:
            yield from jsonl_units(name, file, spec.encoding)


def _wanted(spec: JobSpec) -> list[str]:
    named = (spec.text_field, spec.id_field or "id", spec.schema_field, *spec.fields)
    return list(dict.fromkeys(name for name in named if name is not None))


def _check_columns(header: list[str], name: str, spec: JobSpec) -> None:
    """UsageError where a table lacks a column that every record needs, or has it twice: it would fail each of them."""
    needed = {"text_field": spec.text_field, "id_field": spec.id_field, "schema_field": spec.schema_field}
    wanted: Iterator[tuple[str, str | None]] = chain(needed.items(), (("fields", each) for each in spec.fields))
    for option, column in wanted:
        if column is not None and header.count(column) > 1:
            raise UsageError(f"{name} has {header.count(column)} columns {column!r}, which {option} names: rename them")
        if column is not None and column not in header:
            raise UsageError(
                f"{option} = {column!r} is not a column of {name}: its header names {', '.join(header)}",
                hint=f"--{option.replace('_', '-')}, or the job file" if option != "fields" else "see fields in the job file",
            )


def _folder_units(folder: Path, files: tuple[Path, ...], spec: JobSpec) -> Iterator[Unit]:
    for path in files:
        name = text_name(path.relative_to(folder).as_posix())
        yield Unit(name, name, "", 0, partial(_file_row, path, spec))


def _file_row(path: Path, spec: JobSpec) -> Row:
    try:
        with unpacked(open_regular(path), path) as file:
            raw = file.read(cut.MAX_RECORD_BYTES + 1)
    except OSError as error:
        raise InputError(f"it cannot be read: {error.strerror or error}") from None
    cut.check_utf16(raw, spec.encoding)
    if b"\0" in raw:
        raise InputError("the file holds a zero byte: it is not text")
    return {spec.text_field: decoded(raw, spec.encoding).removeprefix("\ufeff")}


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unchanged(path: Path, ask: Callable[[], Any], known: dict[tuple[int, ...], Any]) -> Any:
    """What `ask` says of a file's bytes; asked again only where the file is not as it was: a job asks twice."""
    stat = path.stat()
    stamp = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
    if stamp not in known:
        said = ask()
        known.clear()
        known[stamp] = said
    return known[stamp]


def _folder_digest(folder: Path, files: tuple[Path, ...]) -> str:
    """Names and bytes of all files; of one that cannot be a record, the name and the reason."""
    total = hashlib.sha256()
    for path in files:
        total.update(os.fsencode(path.relative_to(folder)) + b"\0")
        try:
            with open_regular(path) as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        except InputError as error:
            total.update(b"not read: " + error.message.encode() + b"\0")
    return total.hexdigest()


def _units_digest(units: Callable[[], Iterator[Unit]]) -> str:
    """What the rows of an object say in the columns that matter."""
    total = hashlib.sha256()
    for unit in units():
        try:
            row: Mapping[str, object] = unit.parse()
        except InputError as error:
            row = {"not read": error.message}
        total.update(json.dumps(row, sort_keys=True).encode() + b"\n")
    return total.hexdigest()
