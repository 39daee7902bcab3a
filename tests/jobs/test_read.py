"""Reading: every place of an input is a record or a reported failure, twice the same."""

from __future__ import annotations

import csv
import io
import json
import os
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import UsageError
from toolkit.jobs import csv_units, units
from toolkit.jobs.read import BadRecord, Record, open_source
from toolkit.jobs.spec import make_spec


def records(path: Path, **options: Any) -> list[Record | BadRecord]:
    source = open_source(path, make_spec({"schema": {}, **options}))
    found = list(source)
    assert list(source) == found
    assert source.count() == len(found)
    assert [item.index for item in found] == list(range(len(found)))
    return found


def texts(found: list[Record | BadRecord]) -> list[str]:
    return [item.text if isinstance(item, Record) else f"! {item.reason}" for item in found]


def test_jsonl_gives_texts_ids_and_lines_and_skips_blank_ones(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('\ufeff{"text": "a"}\r\n\n{"id": 7, "text": "b\\u00e9"}\n{"id": "x", "text": "c"}', encoding="utf-8")
    found = records(path)
    assert [(item.id, item.where) for item in found] == [("line-1", "in.jsonl:1"), ("7", "in.jsonl:3"), ("x", "in.jsonl:4")]
    assert texts(found) == ["a", "bé", "c"]


@pytest.mark.parametrize("rest", ['"text": " "', '"text": 5', '"other": "x"'])
def test_a_record_without_text_is_reported_under_its_own_id(tmp_path: Path, rest: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(f'{{"id": "a3", {rest}}}\n{{"id": "a3", "text": "again"}}\n', encoding="utf-8")
    bad, again = records(path)
    assert isinstance(bad, BadRecord) and (bad.id, bad.where) == ("a3", "in.jsonl:1")
    assert isinstance(again, BadRecord) and again.id == "line-2" and "already used" in again.reason


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"nope", "nope|JSON|unexpected|expected"),
        (b"[1]", "holds a list: a record is an object"),
        (b'{"txt": "a"}', "'text' is missing: the record has txt"),
        (b'{"text": 1}', "'text' is int, not text"),
        (b'{"text": " "}', "'text' is empty"),
        (b'{"text": "a", "text": "b"}', "text"),
        (b'{"text": "a", "id": null}', "id field"),
        (b'{"text": "a", "id": ""}', "id field"),
        (b'{"text": "a", "id": true}', "id field"),
        (b'{"text": "\xff"}', "byte 10 is not utf-8"),
        (b'{"text": ' + b"[" * 100_000, "deep|nest"),
        (b'{"id": "good", "text": "again"}', "'good' was already used at in.jsonl:1"),
    ],
)
def test_a_bad_line_costs_that_line_only(tmp_path: Path, line: bytes, said: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"id": "good", "text": "a"}\n' + line + b'\n{"id": "more", "text": "b"}\n')
    first, bad, last = records(path)
    assert isinstance(first, Record) and isinstance(last, Record)
    assert isinstance(bad, BadRecord)
    assert bad.where == "in.jsonl:2"
    assert len(bad.raw) <= units.MAX_RAW_CHARS
    import re

    assert re.search(said, bad.reason), bad.reason


def test_an_id_field_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b", "key": "k"}\n')
    bad, good = records(path, id_field="key")
    assert isinstance(bad, BadRecord) and "'key' is missing" in bad.reason
    assert good.id == "k"


def test_a_line_above_the_limit_is_reported_without_being_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "MAX_RECORD_BYTES", 50)
    path = tmp_path / "in.jsonl"
    lines = ['{"text": "a"}', json.dumps({"text": "x" * 500}), '{"text": "b"}']
    path.write_text("\n".join(lines))
    assert texts(records(path)) == ["a", "! the record has more than 50 bytes", "b"]


def test_csv_with_quoted_newlines_gives_records(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text('id,text\n1,"a\nb, c"\n\n2,d\n')
    found = records(path)
    assert [(item.id, item.where) for item in found] == [("1", "in.csv:2"), ("2", "in.csv:5")]
    assert texts(found) == ["a\nb, c", "d"]


def test_a_tsv_file_is_cut_at_tabs(tmp_path: Path) -> None:
    path = tmp_path / "in.tsv"
    path.write_text("text\tn\na, b\t1\n")
    assert texts(records(path)) == ["a, b"]


def test_bad_rows_of_a_table_cost_themselves_only(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b'id,text\n1,a\n2\n3,\xff\n4,"x"y\n5,b\n')
    found = texts(records(path))
    assert found[0] == "a" and found[-1] == "b"
    assert ["1 cells" in found[1], "not utf-8" in found[2], "not a row" in found[3]] == [True] * 3


@pytest.mark.parametrize(
    ("rows", "good"),
    [
        ('1,"open\n' + "".join(f"{n},row\n" for n in range(2, 400)), 398),  # to the end of the file
        ('1,"open\n2,row\n3,"quoted"\n4,"two\nlines"\n', 3),
        ('1,"open\n2,"open\n3,row\n', 1),
        ("1," + '"' + "x" * 200 + '\n2,row\n3,"' + "y" * 200 + "\n4,row\n", 2),  # a cell above the limit
    ],
)
def test_a_quote_that_is_never_closed_costs_its_own_line_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: str, good: int
) -> None:
    monkeypatch.setattr(units, "MAX_RECORD_BYTES", 150 if "xxx" in rows else 10**6)
    path = tmp_path / "in.csv"
    path.write_text("id,text\n" + rows)
    found = records(path)
    assert sum(isinstance(each, Record) for each in found) == good and len(found) == rows.count("\n") - rows.count("two\n")
    assert [each.id for each in found if isinstance(each, Record)] == [
        line.partition(",")[0] for line in rows.splitlines() if "open" not in line and "," in line and "xxx" not in line and "yyy" not in line
    ]  # fmt: skip


CELLS = st.text(st.sampled_from('a,"\n\t é'), max_size=6)


@given(st.lists(st.tuples(CELLS, CELLS), max_size=6), st.sampled_from([",", "\t"]))
def test_a_well_formed_table_is_read_as_the_csv_module_reads_it(rows: list[tuple[str, str]], delimiter: str) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows([("x", "y"), *rows])
    units_ = list(csv_units.csv_units("in", io.BytesIO(file.getvalue().encode()), delimiter, "utf-8"))
    assert [tuple(each.parse().values()) for each in units_] == rows
    assert [each.where for each in units_] == [
        f"in:{line}" for line in accumulate((2, *(1 + "".join(row).count("\n") for row in rows)))
    ][: len(rows)]


def test_a_table_of_nothing_but_open_quotes_is_read_a_bounded_number_of_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "MAX_RECORD_BYTES", 400)
    path = tmp_path / "in.csv"
    path.write_text("text\n" + 'a","b\n' * 3000)  # from any line on a row without an end
    given: list[int] = []
    plain = csv_units._Feed.__next__

    def counted(self: Any) -> str:
        given.append(1)
        return plain(self)

    monkeypatch.setattr(csv_units._Feed, "__next__", counted)
    found = list(open_source(path, make_spec({"schema": {}})))
    assert len(given) <= 3001 * (csv_units.MOST_READS + 1) + 10  # the header once more, when the input was opened
    assert all(isinstance(each, BadRecord) and "more than 400 bytes" in each.reason for each in found[:-100])
    assert any(isinstance(each, BadRecord) and "lines behind it with it" in each.reason for each in found)


def test_a_row_over_several_lines_that_does_not_fit_says_how_many(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text('id,text\n1,"a\n2,b\n3,c",d\n4,e\n')
    bad, good = records(tmp_path / "in.csv")
    assert isinstance(bad, BadRecord) and "3 cells over 3 lines" in bad.reason and isinstance(good, Record)


@pytest.mark.parametrize("name", ["in.jsonl", "in.csv"])
def test_utf16_is_recognised_and_refused_as_a_whole(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes('text\n{"text": "a"}\n'.encode("utf-16"))
    with pytest.raises(UsageError, match="byte order mark of UTF-16"):
        records(tmp_path / name)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_bytes("text".encode("utf-16"))
    assert "UTF-16" in texts(records(tmp_path / "folder"))[0]


def test_an_encoding_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes("text\ncaf\u00e9\n".encode("latin-1"))
    assert texts(records(path, encoding="latin-1")) == ["café"]


@pytest.mark.parametrize("header", ["a,a\n1,2\n", "a,\n1,2\n", "\n"])
def test_a_table_needs_a_header_that_names_every_column_once(tmp_path: Path, header: str) -> None:
    (tmp_path / "in.csv").write_text(header)
    with pytest.raises(UsageError, match="must name every column once"):
        records(tmp_path / "in.csv")


def test_a_folder_gives_its_files_by_name_without_hidden_ones_and_links(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    (folder / "sub").mkdir(parents=True)
    (folder / "b.txt").write_text("second")
    (folder / "a.md").write_text("first")
    (folder / "sub" / "c").write_text("third")
    (folder / ".hidden").write_text("no")
    (folder / "bin.dat").write_bytes(b"\0\1")
    (folder / "link.txt").symlink_to(tmp_path / "elsewhere")
    found = records(folder)
    assert [item.id for item in found] == ["a.md", "b.txt", "bin.dat", "link.txt", "sub/c"]
    assert texts(found) == [
        "first",
        "second",
        "! the file holds a zero byte: it is not text",
        "! a symbolic link is not followed",
        "third",
    ]


def test_whatever_in_a_folder_is_no_readable_file_is_one_failed_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "docs"
    (folder / "locked").mkdir(parents=True)
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    (folder / "secret").write_text("x")
    (folder / "a").write_text("good")
    refuse(monkeypatch, "open", folder / "secret")
    refuse(monkeypatch, "scandir", folder / "locked")
    refuse(monkeypatch, "open", folder / "locked")
    found = records(folder)
    assert [(item.id, isinstance(item, Record)) for item in found] == [
        ("a", True), ("dangling", False), ("locked", False), ("loop", False), ("pipe", False), ("secret", False), ("zero", False),
    ]  # fmt: skip
    reasons = " ".join(item.reason for item in found if isinstance(item, BadRecord))
    assert reasons.count("link is not followed") == 3 and reasons.count("Permission denied") == 2 and "a pipe" in reasons
    spec = make_spec({"schema": {}})
    before = open_source(folder, spec).digest()
    (folder / "dangling").rename(folder / "dangling too")
    assert open_source(folder, spec).digest() != before


def refuse(monkeypatch: pytest.MonkeyPatch, call: str, refused: Path) -> None:
    """Fails as for a user without the right (tests may run as root, who has every right)."""
    real = getattr(os, call)

    def guarded(path: Any, *rest: Any) -> Any:
        if Path(path) == refused:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *rest)

    monkeypatch.setattr(os, call, guarded)


def test_names_that_are_not_utf8_become_text(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    for name in (b"a\xff", b"a\xfe"):
        Path(os.fsdecode(bytes(folder) + b"/" + name)).write_text("x")
    assert [(item.id, item.where) for item in records(folder)] == [("a%FE", "a%FE"), ("a%FF", "a%FF")]
    file = Path(os.fsdecode(bytes(folder) + b"/\xff.jsonl"))
    file.write_text('{"text": "a"}')
    assert [item.where for item in records(file)] == ["%FF.jsonl:1"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "text_field = 'text' is not a column of .*: its header names id, body .*--text-field"),
        ({"text_field": "body", "id_field": "key"}, "id_field = 'key' is not a column"),
        ({"text_field": "body", "fields": ["lang"]}, "fields = 'lang' is not a column"),
        ({"text_field": "body", "schema": None, "schema_field": "s"}, "schema_field = 's' is not a column"),
    ],
)
def test_a_table_without_a_column_that_every_record_needs_is_refused(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    (tmp_path / "in.csv").write_text("id,body\n1,a\n")
    with pytest.raises(UsageError, match=said):
        records(tmp_path / "in.csv", **options)


def test_a_pipe_is_refused_by_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "in.jsonl")
    for name in (tmp_path / "in.jsonl", Path("/dev/zero")):
        with pytest.raises(UsageError, match=r"is a pipe or a device: .* more than once"):
            records(name)


def test_the_digest_changes_with_every_byte_and_name(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a").write_text("x")
    spec = make_spec({"schema": {}})
    first = open_source(folder, spec).digest()
    (folder / "a").rename(folder / "b")
    second = open_source(folder, spec).digest()
    (folder / "b").write_text("y")
    third = open_source(folder, spec).digest()
    assert len({first, second, third}) == 3


@pytest.mark.parametrize(
    ("name", "said"), [("gone.jsonl", "does not exist"), ("x.pdf", "must be .jsonl"), ("empty.jsonl", "no record")]
)
def test_an_input_that_cannot_be_one_is_refused(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "x.pdf").write_text("x")
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(UsageError, match=said):
        records(tmp_path / name)
