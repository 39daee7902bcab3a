"""Data that is none and places where nothing can be written are refused by their path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench.bench_scripted import Bytes, ScriptedEngine
from toolkit.bench import bfcl, extraction, schemas, snips
from toolkit.errors import InputError, ToolkitError, UsageError

BROKEN: dict[str, bytes] = {
    "no JSON": b"{",
    "no object": b"[1]",
    "no UTF-8": b"\xff",
    "another record": b'{"id": "a"}',
    "wrong types": b'{"id": "a", "question": 1, "function": 2, "answers": 3, "text": 4, "slots": 5, "schema": 6, "valid": 7}',
    "too deep": b"[" * 100_000,
}


def loads(kind: str, place: Path) -> Any:
    if kind == "bfcl":
        return bfcl.load(place)
    if kind == "snips":
        return snips.load(place.parent)
    return schemas.measure(place.parents[3] if kind == "suite" else place.parent, Bytes())


NAMES = {
    "bfcl": "data.jsonl",
    "snips": "A.train.jsonl",
    "suite": "json_schema_test_suite/tests/draft2020-12/a.json",
    "benchmark": "jsonschemabench.jsonl",
}


def suites(root: Path) -> None:
    """Both suites of the schema bench, with nothing in them."""
    for draft in schemas.SETS.values():
        folder = root / "json_schema_test_suite" / "tests" / draft
        folder.mkdir(parents=True)
        (folder / "a.json").write_text("[]")


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("kind", NAMES)
def test_data_that_is_none_is_refused_by_its_path(kind: str, what: str, tmp_path: Path) -> None:
    suites(tmp_path)
    place = tmp_path / NAMES[kind]
    place.write_bytes(BROKEN[what])
    with pytest.raises(InputError) as refused:
        loads(kind, place)
    assert str(place) in str(refused.value) or "record 'a'" in str(refused.value)


@pytest.mark.parametrize("kind", ["bfcl", "snips", "benchmark"])
def test_a_folder_in_the_place_of_a_file_is_refused_by_its_path(kind: str, tmp_path: Path) -> None:
    suites(tmp_path)
    place = tmp_path / NAMES[kind]
    place.mkdir()
    with pytest.raises(ToolkitError) as refused:
        loads(kind, place)
    assert str(place) in str(refused.value)


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("below", ["file", "file/below"])
def test_rows_cannot_be_kept_in_a_file(below: str, resume: bool, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    parameters = {"type": "dict", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    row = {"id": "r", "question": "q", "function": {"name": "f", "description": "d", "parameters": parameters}}
    (tmp_path / "data.jsonl").write_text(json.dumps(row | {"answers": [{"f": {"n": [1]}}]}))
    with pytest.raises(UsageError, match=str(tmp_path / below)):
        extraction.run(
            ScriptedEngine(lambda request: [({"n": 1}, -1.0)]), task="bfcl", data=tmp_path / "data.jsonl",
            out=tmp_path / below, resume=resume,
        )  # fmt: skip
    assert (tmp_path / "file").read_text() == "mine"
