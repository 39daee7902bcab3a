"""Inputs: every kind gives the records that JSON lines give, streamed; what is damaged or absent is said."""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet

from tests.jobs.scripted_job_engine import ScriptedEngine
from toolkit.errors import MissingExtraError, UsageError
from toolkit.jobs.read import BadRecord, Record, Source, open_source
from toolkit.jobs.run import prepare, run_job
from toolkit.jobs.spec import make_spec

ROWS = [{"id": f"r{index}", "text": f"text {index}", "more": index} for index in range(150)]
JSONL = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
CSV = "id,text,more\n" + "".join(f"{row['id']},{row['text']},{row['more']}\n" for row in ROWS)


def source(place: object, **options: Any) -> Source:
    return open_source(place, make_spec({"schema": {}, **options}))


def jsonl_gz(folder: Path) -> object:
    (folder / "in.jsonl.gz").write_bytes(gzip.compress(JSONL))
    return folder / "in.jsonl.gz"


def jsonl_zst(folder: Path) -> object:
    half = len(JSONL) // 2  # two frames one after another, as parallel compressors write
    packer = zstandard.ZstdCompressor()
    (folder / "in.jsonl.zst").write_bytes(packer.compress(JSONL[:half]) + packer.compress(JSONL[half:]))
    return folder / "in.jsonl.zst"


def csv_gz(folder: Path) -> object:
    (folder / "in.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    return folder / "in.csv.gz"


def parquet_file(folder: Path) -> object:
    parquet.write_table(pa.Table.from_pylist(ROWS), folder / "in.parquet", row_group_size=40)
    return folder / "in.parquet"


KINDS: dict[str, Callable[[Path], object]] = {
    "jsonl.gz": jsonl_gz,
    "jsonl.zst": jsonl_zst,
    "csv.gz": csv_gz,
    "parquet": parquet_file,
    "pandas": lambda folder: pd.DataFrame(ROWS),
    "arrow": lambda folder: pa.Table.from_pylist(ROWS),
    "datasets": lambda folder: datasets.Dataset.from_list(ROWS),
    "list": lambda folder: ROWS,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_same_records_any_number_of_times(tmp_path: Path, kind: str) -> None:
    found = source(KINDS[kind](tmp_path))
    assert found.count() == len(ROWS) and found.digest() == source(KINDS[kind](tmp_path)).digest()
    for _ in range(2):
        assert [(each.index, each.id, each.text) for each in found if isinstance(each, Record)] == [
            (index, row["id"], row["text"]) for index, row in enumerate(ROWS)
        ]


def test_other_rows_have_another_digest() -> None:
    assert source(ROWS).digest() != source([{**ROWS[0], "text": "other"}, *ROWS[1:]]).digest()


STREAMS: dict[str, Callable[[], object]] = {
    "generator": lambda: (row for row in ROWS),
    "reader": lambda: pa.Table.from_pylist(ROWS).to_reader(),
    "iterable dataset": lambda: datasets.Dataset.from_list(ROWS).to_iterable_dataset(),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_a_stream_is_read_once_and_a_job_on_it_is_not_resumed(tmp_path: Path, kind: str) -> None:
    found = source(STREAMS[kind]())
    assert (found.count(), found.digest()) == (None, None)
    assert [each.id for each in found] == [row["id"] for row in ROWS]
    with pytest.raises(UsageError, match="it can be read once"):
        list(found)
    job = prepare(STREAMS[kind](), make_spec({"schema": {"type": "integer"}}))
    summary = run_job(job, tmp_path / "out", ScriptedEngine(len))
    assert (summary.total, summary.valid) == (150, 150)
    with pytest.raises(UsageError, match="cannot be resumed"):
        run_job(prepare(STREAMS[kind](), job.spec), tmp_path / "out", ScriptedEngine(len), resume=True)


def test_stdin_is_json_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(JSONL + b"nope\n")))
    found = list(source("-"))
    assert [each.id for each in found[:-1]] == [row["id"] for row in ROWS]
    assert isinstance(found[-1], BadRecord) and found[-1].where == "stdin:151"


@pytest.mark.parametrize("cut", [1, 40, 200])
@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst"])
def test_a_packed_file_that_ends_early_is_said_to_be_damaged_before_anything_runs(tmp_path: Path, kind: str, cut: int) -> None:
    path = KINDS[kind](tmp_path)
    assert isinstance(path, Path)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(UsageError, match=r"in\.jsonl\.\w+: the packed file is damaged"):
        source(path).count()


@pytest.mark.parametrize("name", ["in.jsonl.gz", "in.jsonl.zst", "in.csv.gz", "in.parquet"])
def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"not packed at all" * 10)
    with pytest.raises(UsageError, match=f"in.*{name[-3:]}"):
        source(tmp_path / name)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress], ids=["gz", "zst"])
def test_a_small_file_that_unpacks_to_a_huge_line_costs_that_line_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr("toolkit.jobs.units.MAX_RECORD_BYTES", 1000)
    ending = "gz" if pack is gzip.compress else "zst"
    path = tmp_path / f"in.jsonl.{ending}"
    path.write_bytes(pack(JSONL[:200].rsplit(b"\n", 1)[0] + b'\n{"text": "' + b"x" * 3_000_000 + b'"}\n' + JSONL[-48:]))
    found = list(source(path))
    assert [each.where for each in found if isinstance(each, BadRecord)] == [f"{path.name}:{len(found) - 1}"]
    assert isinstance(found[-1], Record)


def test_packed_files_of_a_folder_are_unpacked(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.txt.gz").write_bytes(gzip.compress(b"first"))
    (folder / "b.txt").write_text("second")
    (folder / "c.txt.gz").write_bytes(gzip.compress(b"third")[:-3])
    first, second, third = source(folder)
    assert isinstance(first, Record) and isinstance(second, Record) and isinstance(third, BadRecord)
    assert (first.text, second.text) == ("first", "second") and "damaged" in third.reason


def test_rows_that_are_none_and_values_that_json_does_not_have_cost_themselves_only() -> None:
    rows = [{"text": "a", "id": 1}, 5, {"text": float("nan"), "id": 2}, {"text": "d", "id": 1}, {"id": 7, "text": b"bytes"}]
    found = list(source(rows))
    assert [isinstance(each, Record) for each in found] == [True, False, False, False, False]
    reasons = [each.reason for each in found if isinstance(each, BadRecord)]
    assert (
        "it is a int" in reasons[0]
        and "not text" in reasons[1]
        and "already used at row:1" in reasons[2]
        and "field 'text' is a bytes, which JSON has not" in reasons[3]
    )
    itself: dict[str, Any] = {"text": "a"}
    itself["x"] = [itself]
    found = list(source([itself, {"text": "b", "x": 10**5000}, {"text": "c", "x": {"y": b"left out"}}], fields=["x"]))
    assert [isinstance(each, Record) for each in found] == [False, False, True]


@pytest.mark.parametrize("kind", ["file", "table"])
def test_a_value_that_python_cannot_hold_costs_its_row_and_a_doubled_column_the_input(tmp_path: Path, kind: str) -> None:
    bytes_ = pa.array([b"a", b"\xff\xfe", b"c", b"d"])
    table = pa.table(
        {"text": pa.Array.from_buffers(pa.string(), 4, bytes_.buffers()), "id": pa.array([1, 2, 10**8, 4], pa.date32())}
    )

    def place(table: pa.Table) -> object:
        parquet.write_table(table, tmp_path / "in.parquet")
        return tmp_path / "in.parquet" if kind == "file" else table

    found = list(source(place(table)))
    assert [isinstance(each, Record) for each in found] == [True, False, False, True]
    assert all("the row cannot be read" in each.reason for each in found if isinstance(each, BadRecord))
    with pytest.raises(UsageError, match="has 2 columns 'text', which text_field names"):
        source(place(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])))


def test_a_parquet_file_damaged_further_on_ends_the_job_as_what_it_is(tmp_path: Path) -> None:
    table = pa.table({"text": [f"text {index} {index * 7919}" * 20 for index in range(4000)]})
    parquet.write_table(table, tmp_path / "in.parquet", row_group_size=1000, compression="zstd")
    data = bytearray((tmp_path / "in.parquet").read_bytes())
    data[len(data) * 3 // 4 : len(data) * 3 // 4 + 400] = b"\xff" * 400
    (tmp_path / "in.parquet").write_bytes(data)
    records = iter(source(tmp_path / "in.parquet"))
    assert isinstance(next(records), Record)
    with pytest.raises(UsageError, match=r"in\.parquet is damaged"):
        list(records)


@pytest.mark.parametrize("kind", ["csv.gz", "parquet", "pandas", "arrow", "datasets"])
def test_a_table_that_lacks_a_column_every_record_needs_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UsageError, match="text_field = 'body' is not a column"):
        source(KINDS[kind](tmp_path), text_field="body")


@pytest.mark.parametrize("nothing", [[], pd.DataFrame({"text": []}), iter([])])
def test_nothing_at_all_is_refused(nothing: object) -> None:
    with pytest.raises(UsageError, match="holds no record"):
        source(nothing)
    with pytest.raises(UsageError, match="gives no rows"):
        source(5)


@pytest.mark.parametrize(("kind", "package"), [("jsonl.zst", "zstandard"), ("parquet", "pyarrow")])
def test_a_reader_that_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, package: str
) -> None:
    place = KINDS[kind](tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{package} is not installed .*sgl-toolkit\[data\]"):
        source(place)


def test_ids_are_unique_over_any_number_of_records(tmp_path: Path) -> None:
    rows = [{"id": f"r{index % 4000}", "text": "a"} for index in range(4100)] + [{"id": "\ud800", "text": "b"}] * 2
    found = list(source(rows))
    assert [each.index for each in found if isinstance(each, BadRecord)] == [*range(4000, 4100), 4101]
