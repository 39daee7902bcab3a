"""The store: what is on the disk after any way of stopping."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from toolkit.errors import EngineError, UsageError
from toolkit.jobs.places import errors_path, terms_path, writable
from toolkit.jobs.store import Store, open_store

TERMS = {"input": {"records": 4}, "job": {"width": 4}}


def filled(out: Path) -> None:
    with open_store(out, TERMS, resume=False) as store:
        store.add({"id": "a"})
        store.fail({"id": "b", "stage": "decode"})
        store.add({"id": "c"})


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def resumed(out: Path, terms: dict[str, Any] = TERMS) -> Store:
    return open_store(out, terms, resume=True)


def test_lines_go_to_their_file_with_their_index(tmp_path: Path) -> None:
    out = tmp_path / "out"
    filled(out)
    assert lines(out) == [{"id": "a", "index": 0}, {"id": "c", "index": 2}]
    assert lines(errors_path(out)) == [{"id": "b", "stage": "decode", "index": 1}]


def test_a_line_is_in_the_file_before_the_next_call(tmp_path: Path) -> None:
    with open_store(tmp_path / "out", TERMS, resume=False) as store:
        store.add({"id": "é\ud800"})
        assert (tmp_path / "out").read_bytes() == '{"id":"é\ufffd","index":0}\n'.encode()


def test_resume_goes_on_behind_the_last_line(tmp_path: Path) -> None:
    filled(tmp_path / "out")
    with resumed(tmp_path / "out") as store:
        assert store.position == 3
        assert store.failures == {"decode": 1}


@pytest.mark.parametrize("cut", range(1, len('{"id":"c","index":2}\n') + 1))
def test_a_line_torn_anywhere_is_cut_off_and_written_again(tmp_path: Path, cut: int) -> None:
    out = tmp_path / "out"
    filled(out)
    os.truncate(out, out.stat().st_size - cut)
    with resumed(out) as store:
        assert store.position == 2
        store.add({"id": "c"})
    assert [line["id"] for line in lines(out)] == ["a", "c"]


def test_lines_behind_a_lost_one_are_written_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    filled(out)
    errors_path(out).write_bytes(b"")
    with resumed(out) as store:
        assert (store.position, store.dropped) == (1, 1)
    assert [line["id"] for line in lines(out)] == ["a"]


@pytest.mark.parametrize(("gone", "dropped"), [(0, 3), (1, 2), (2, 1), (3, 0)])
def test_a_line_deleted_anywhere_costs_those_behind_it_and_they_are_counted(tmp_path: Path, gone: int, dropped: int) -> None:
    out = tmp_path / "out"
    with open_store(out, TERMS, resume=False) as store:
        for name in "abcd":
            store.add({"id": name})
    kept = out.read_text().splitlines(keepends=True)
    out.write_text("".join(kept[:gone] + kept[gone + 1 :]))
    with resumed(out) as store:
        assert (store.position, store.dropped) == (gone, dropped)


def test_lines_out_of_order_are_refused_and_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    filled(out)
    mixed = "".join(reversed(out.read_text().splitlines(keepends=True)))
    out.write_text(mixed)
    with pytest.raises(UsageError, match="index 0 behind 2"):
        resumed(out)
    assert out.read_text() == mixed


def test_a_manifest_torn_anywhere_is_none(tmp_path: Path) -> None:
    out = tmp_path / "out"
    open_store(out, TERMS, resume=False).close()
    whole = terms_path(out).read_bytes()
    for cut in range(len(whole)):
        terms_path(out).write_bytes(whole[:cut])
        with resumed(out) as store:
            assert store.position == 0
        assert terms_path(out).read_bytes() == whole


@pytest.mark.parametrize(
    "foreign",
    [b"precious", b"precious\n", b'{"format":', b'{"format":2', b'{"name":"x"}', b'{"name":"x"}\n', b"[1]\n", b"[" * 5000 + b"\n", b"\xff\n", b"\n"],
)  # fmt: skip
def test_a_manifest_of_someone_else_is_never_changed(tmp_path: Path, foreign: bytes) -> None:
    out = tmp_path / "out"
    if foreign == b'{"format":':  # ours, but lines are there: what they were written under is not known
        filled(out)
    terms_path(out).write_bytes(foreign)
    with pytest.raises(UsageError, match="name another output"):
        resumed(out)
    assert terms_path(out).read_bytes() == foreign
    assert out.exists() == (foreign == b'{"format":')


def test_resume_of_nothing_begins(tmp_path: Path) -> None:
    with resumed(tmp_path / "out") as store:
        assert store.position == 0


@pytest.mark.parametrize("name", ["out", "out.errors.jsonl", "out.job.json"])
def test_an_output_that_exists_is_refused_without_resume(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(UsageError, match=r"exists .*--resume"):
        open_store(tmp_path / "out", TERMS, resume=False)


def test_resume_under_other_terms_is_refused_and_names_them(tmp_path: Path) -> None:
    filled(tmp_path / "out")
    with pytest.raises(UsageError, match=r"another job: input\.records: 4 -> 5; job\.width: 4 -> 8"):
        resumed(tmp_path / "out", {"input": {"records": 5}, "job": {"width": 8}})


@pytest.mark.parametrize("name", ["out", "out.errors.jsonl"])
def test_a_file_that_no_job_wrote_is_never_appended_to(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious\n")
    with pytest.raises(UsageError, match="no job wrote it"):
        resumed(tmp_path / "out")
    assert (tmp_path / name).read_text() == "precious\n"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_foreign_line_inside_is_reported_with_its_number(tmp_path: Path) -> None:
    out = tmp_path / "out"
    filled(out)
    out.write_text("precious\n" + out.read_text())
    with pytest.raises(UsageError, match="out:1 was not written by a job"):
        resumed(out)


def test_two_writers_exclude_each_other(tmp_path: Path) -> None:
    with open_store(tmp_path / "out", TERMS, resume=False), pytest.raises(UsageError, match="being written by another"):
        resumed(tmp_path / "out")
    with resumed(tmp_path / "out") as store:
        assert store.position == 0


def test_a_missing_folder_and_a_folder_as_output_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        open_store(tmp_path / "no" / "out", TERMS, resume=False)
    with pytest.raises(UsageError, match="is a folder"):
        open_store(tmp_path, TERMS, resume=True)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("-", "a job writes files"),
        ("/dev/null", "is a device or a pipe"),
        ("pipe", "is a device or a pipe"),
        ("n" * 250, "cannot be written"),
        ("/proc/out", "cannot be written"),
    ],
)
@pytest.mark.parametrize("resume", [False, True])
def test_an_output_that_is_no_plain_file_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str, resume: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=said) as caught:
        open_store(Path(name), TERMS, resume=resume)
    assert name[:100] in str(caught.value)
    assert "delete" not in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, EngineError), (errno.EACCES, UsageError)])
def test_a_disk_that_is_full_from_the_start_is_nobodys_wrong_call(tmp_path: Path, number: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="cannot be written"), writable(tmp_path / "out"):
        raise OSError(number, os.strerror(number))


@pytest.mark.parametrize("what", ["line", "sync"])
def test_a_full_disk_is_an_error_that_names_the_file_and_a_resume_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    out = tmp_path / "out"
    filled(out)
    with resumed(out) as store:
        if what == "sync":
            monkeypatch.setattr("os.fsync", full)
        else:  # a write that takes a part of the line, then fails
            monkeypatch.setattr(store._lines, "_file", FullDisk(store._lines._file))
        with pytest.raises(EngineError, match=r"out cannot be written: No space left on device \(--resume goes on\)"):
            store.add({"id": "d"})
        monkeypatch.undo()
    with resumed(out) as store:
        assert store.position == (4 if what == "sync" else 3)
        store.add({"id": "e"})
    assert [line["index"] for line in lines(out)][:3] == [0, 2, 3]


class FullDisk:
    """A raw file with room for five more bytes."""

    def __init__(self, file: Any) -> None:
        self.file, self.room, self.closed = file, 5, False

    def write(self, data: memoryview) -> int:
        if not self.room:
            raise OSError(28, "No space left on device")
        written = self.file.write(data[: self.room])
        self.room = 0
        return int(written)

    def close(self) -> None:
        self.file.close()
