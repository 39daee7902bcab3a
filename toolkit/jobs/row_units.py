"""Rows: the rows of Parquet files and of Python objects: pandas, pyarrow, Hugging Face datasets, lists and iterators of mappings.

In: a file or an object, the columns that matter.   Out: Units, one a row.
Knows nothing about: which columns a record needs. Imports none of those packages but pyarrow, and that for files only.
Invariants: rows are taken in small batches, never a whole table at once; a value that JSON does not have becomes text (dates) or null
(NaN); one that is neither (bytes, images) costs its row, or is left out where it is inside another value.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.contracts import Json
from toolkit.errors import InputError, MissingExtraError, UsageError
from toolkit.jobs.units import MAX_RAW_CHARS, MAX_RECORD_BYTES, Unit, failed

BATCH = 64


class _Left:
    """Stands for a value that no prompt can take."""


@dataclass(frozen=True, slots=True)
class _Broken:
    """Stands for a row that cannot be read."""

    why: str


def parquet_columns(path: Path) -> list[str]:
    """The columns of a file; UsageError where it is no Parquet file, MissingExtraError without pyarrow."""
    with _parquet(path) as file:
        return list(file.schema_arrow.names)


def parquet_count(path: Path) -> int:
    """How many rows a file has."""
    with _parquet(path) as file:
        return int(file.metadata.num_rows)


def parquet_units(path: Path, name: str, columns: Sequence[str]) -> Iterator[Unit]:
    """One unit a row, of the columns that are there. InputError where the file is damaged further on."""
    with _parquet(path) as file:
        there = [each for each in columns if each in file.schema_arrow.names]
        try:
            batches = file.iter_batches(batch_size=BATCH, columns=there)
            yield from _units((row for batch in batches for row in _listed(batch)), name, there)
        except (OSError, ValueError) as error:  # pyarrow's own are both
            raise InputError(f"input {path} is damaged: {' '.join(str(error).split())[:200]}") from None


def _listed(batch: Any) -> Iterable[object]:
    """Rows as Python has them; where one has a value that Python has not (text that is no UTF-8, a far date), a _Broken in its place."""
    try:
        rows: list[object] = batch.to_pylist()
    except (ValueError, OverflowError):
        return (_one(batch.slice(at, 1)) for at in range(batch.num_rows))
    return rows


def _one(row: Any) -> object:
    try:
        return row.to_pylist()[0]
    except (ValueError, OverflowError) as error:
        return _Broken(" ".join(str(error).split())[:200])


def _parquet(path: Path) -> Any:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise MissingExtraError("pyarrow", "data") from None
    try:
        return parquet.ParquetFile(path, memory_map=True)
    except pa.ArrowInvalid as error:
        raise UsageError(f"input {path} is no Parquet file: {' '.join(str(error).split())[:200]}") from None


def repeatable(rows: object) -> bool:
    """Can the object be gone through any number of times?"""
    return hasattr(rows, "__len__") and not isinstance(rows, Iterator)


def object_columns(rows: object) -> list[str] | None:
    """The columns of a table-like object, None where each row says for itself."""
    for attribute in ("column_names", "columns"):
        names = getattr(rows, attribute, None)
        if names is not None and all(isinstance(each, str) for each in names):
            return list(names)
    return None


def object_units(rows: Any, name: str, columns: Sequence[str]) -> Iterator[Unit]:
    """One unit a row of a DataFrame, an Arrow table, a dataset, or anything that gives mappings."""
    yield from _units(_rows(rows, columns), name, columns)


def _rows(rows: Any, columns: Sequence[str]) -> Iterable[object]:
    if hasattr(rows, "iloc") and hasattr(rows, "to_dict"):  # pandas
        return (row for start in range(0, len(rows), BATCH) for row in rows.iloc[start : start + BATCH].to_dict("records"))
    if hasattr(rows, "to_batches"):  # pyarrow
        return (row for batch in rows.to_batches(max_chunksize=BATCH) for row in _listed(batch))
    if hasattr(rows, "read_next_batch"):  # pyarrow's stream of batches, each as large as its writer made it
        return (row for batch in rows for start in range(0, len(batch), BATCH) for row in _listed(batch.slice(start, BATCH)))
    if (
        hasattr(rows, "select_columns") and rows.column_names
    ):  # Hugging Face datasets: images and sounds are not decoded for nothing
        rows = rows.select_columns([each for each in rows.column_names if each in columns])
    return (row for row in rows)


def _units(rows: Iterable[object], name: str, columns: Sequence[str]) -> Iterator[Unit]:
    for number, row in enumerate(rows, start=1):
        where, own = f"{name}:{number}", f"row-{number}"
        try:
            plain = _plain_row(row, columns)
            raw = json.dumps(plain, ensure_ascii=False)
            if len(raw) > MAX_RECORD_BYTES:
                raise InputError(f"the record has more than {MAX_RECORD_BYTES} bytes")
        except (
            InputError,
            RecursionError,
            ValueError,
        ) as error:  # it holds itself; an integer of more digits than Python writes
            why = error.message if isinstance(error, InputError) else f"it is no JSON: {error}"
            yield Unit(where, own, "", 0, partial(failed, why))
        else:
            yield Unit(where, own, raw[:MAX_RAW_CHARS], len(raw), plain.copy)


def _plain_row(row: object, columns: Sequence[str]) -> dict[str, Json]:
    """The columns that matter as JSON; InputError where one of them is nothing that JSON has."""
    if isinstance(row, _Broken):
        raise InputError(f"the row cannot be read: {row.why}")
    if not isinstance(row, Mapping):
        raise InputError(f"it is a {type(row).__name__}: a record is a mapping")
    plain = {each: _plain(row[each]) for each in columns if each in row}
    for name, item in plain.items():
        if isinstance(item, _Left):
            raise InputError(f"field {name!r} is a {type(row[name]).__name__}, which JSON has not")
    return plain


def _plain(value: object) -> Json | _Left:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): item for key, each in value.items() if not isinstance(item := _plain(each), _Left)}
    if isinstance(value, list | tuple | np.ndarray):
        return [item for each in value if not isinstance(item := _plain(each), _Left)]
    return _Left()
