"""Parquet out: the lines of a finished job as one Parquet file.

Columns: index, id, where, valid, needs_review, score; `value` (the value as JSON text); one column `value.<name>` for each property of
the job's schema, typed where the schema says string, integer, number or boolean (or null beside it), else JSON text; every other
field of a line as JSON text under its name (see jobs.finish).
In: OUT.parquet.lines.jsonl.   Out: OUT.parquet, put in place whole.
Knows nothing about: how a line comes about.   Invariants: constant memory; the lines stay, and a resume goes on with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from toolkit.contracts import Json
from toolkit.errors import EngineError, InputError, MissingExtraError
from toolkit.jobs.lines import whole_lines
from toolkit.jobs.places import PARQUET, lines_path
from toolkit.results import json_text
from toolkit.schema import MAX_DEPTH, parse_json

ROWS = 512
PLAIN = {"index": "int64", "id": "string", "where": "string", "valid": "bool", "needs_review": "bool", "score": "double"}
TEXTS = (
    "value", "alternatives", "confidence", "confidence_detail", "spans", "span_detail", "review_reasons", "chunks", "provenance",
    "usage", "timing", "text", "sum_logprob", "diversity", "partial", "notes", "tries",
)  # fmt: skip
TYPES = {"string": "string", "integer": "int64", "number": "double", "boolean": "bool"}
MOST_INT = 1 << 63


def check_parquet(out: Path) -> None:
    """MissingExtraError where OUT is to be a Parquet file and pyarrow is not installed."""
    if out.suffix == PARQUET:
        _pyarrow()


def write_parquet(out: Path, schema: Json) -> None:
    """Make OUT of its lines, or make it anew. EngineError where the disk is full, InputError for an integer beyond 64 bits."""
    pa, parquet = _pyarrow()
    typed = _typed(schema)
    columns = {**PLAIN, **{f"value.{name}": kind for name, kind in typed.items()}, **dict.fromkeys(TEXTS, "string")}
    arrow = pa.schema(
        [(name, getattr(pa, {"double": "float64", "bool": "bool_"}.get(kind, kind))()) for name, kind in columns.items()]
    )
    fresh = out.with_name(out.name + ".new")
    try:
        with parquet.ParquetWriter(fresh, arrow, compression="zstd") as writer:
            rows = (_row(parse_json(line.raw, max_depth=2 * MAX_DEPTH), typed) for line in whole_lines(lines_path(out)))
            while batch := list(islice(rows, ROWS)):
                writer.write_table(pa.Table.from_pylist(batch, schema=arrow))
        fresh.replace(out)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink()
        raise EngineError(f"output {out} cannot be written: {error.strerror or error}", hint="--resume makes it") from None


def _typed(schema: Json) -> dict[str, str]:
    """Column types of the top-level properties; "json" where no plain one fits."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return {}
    return {name: _type(each) for name, each in properties.items()}


def _type(schema: Json) -> str:
    kinds = schema.get("type") if isinstance(schema, dict) else None
    named = [each for each in (kinds if isinstance(kinds, list) else [kinds]) if each != "null"]
    return TYPES.get(str(named[0]), "string") if len(named) == 1 else "string"


def _row(line: Mapping[str, Any], typed: Mapping[str, str]) -> dict[str, Any]:
    row = {name: line.get(name) for name in PLAIN}
    row |= {name: json_text(line[name]) for name in TEXTS if name in line}
    value = line["value"]
    for name, kind in typed.items():
        if isinstance(value, dict) and name in value:
            row[f"value.{name}"] = _cell(value[name], kind, f"{line['id']}: {name}")
    return row


def _cell(item: Json, kind: str, what: str) -> Any:
    if item is None or isinstance(item, str):
        return item
    if kind == "string":
        return json_text(item)
    if kind == "int64":
        if not -MOST_INT <= item < MOST_INT:
            raise InputError(f"record {what} = {item} has more than 64 bits: Parquet cannot hold it", hint="write .jsonl")
        return int(item)
    return float(item) if kind == "double" else item


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise MissingExtraError("pyarrow", "data") from None
    return pa, parquet
