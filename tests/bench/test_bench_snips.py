"""SNIPS: slots become optional fields, F1 counts pairs, intents are interleaved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolkit.bench import snips
from toolkit.bench.task import Counts
from toolkit.errors import InputError

SHARED = Path(__file__).parents[3] / "shared" / "data" / "snips"


def write(folder: Path, intent: str, split: str, *rows: dict[str, Any]) -> None:
    lines = [json.dumps({"id": f"{intent}-{split}-{n}", **row}) + "\n" for n, row in enumerate(rows)]
    (folder / f"{intent}.{split}.jsonl").write_text("".join(lines), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shots = [{"text": f"{n} people in Rome", "slots": {"city": ["Rome"], "size": [str(n)]}} for n in range(6)]
    write(tmp_path, "Book", "train", *shots, {"text": "rare", "slots": {"rare": ["rare"]}})
    write(tmp_path, "Book", "test", {"text": "In Oslo", "slots": {"city": ["Oslo"], "rare": ["x"]}}, {"text": "b", "slots": {}})
    write(tmp_path, "Play", "train", {"text": "Play Bach", "slots": {"artist": ["Bach"]}})
    write(tmp_path, "Play", "test", {"text": "Play Jazz", "slots": {"artist": ["Jazz"]}})
    return tmp_path


def test_intents_are_interleaved_so_that_every_limit_covers_them(folder: Path) -> None:
    assert [item.id for item in snips.load(folder).items] == ["Book-test-0", "Play-test-0", "Book-test-1"]


def test_every_slot_is_optional_and_rare_slots_are_neither_asked_for_nor_missed(folder: Path) -> None:
    item = snips.load(folder, slots=2).items[0]
    assert list(item.schema["properties"]) == ["city", "size"] and item.schema["required"] == []
    assert item.gold == {("city", "oslo")}


def test_shots_are_five_and_written_in_the_order_of_the_schema(folder: Path) -> None:
    prompt = snips.load(folder, style="raw").items[0].prompt
    assert isinstance(prompt, str)
    assert prompt.count("Request: ") == 6
    assert '{"city":"Rome","size":"0"}' in prompt
    assert prompt.endswith("Request: In Oslo\nFields:\n")


def test_f1_counts_pairs_of_slot_and_lower_cased_value() -> None:
    gold = {("city", "oslo"), ("size", "two")}
    assert snips.judge(gold, {"city": " OSLO", "size": "three", "date": "now"}) == Counts(1, 2, 1)
    assert snips.judge(gold, None) == Counts(0, 0, 2)
    assert snips.judge(set(), {}).exact


def test_a_folder_without_the_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no <Intent>"):
        snips.load(tmp_path)
    (tmp_path / "A.train.jsonl").write_text('{"slots": 3}\n')
    with pytest.raises(InputError, match="not a SNIPS file"):
        snips.load(tmp_path)


@pytest.mark.conformance
def test_the_shared_folder_gives_three_hundred_requests() -> None:
    if not SHARED.exists():
        pytest.skip("snips is not in ../shared/data")
    items = snips.load(SHARED).items
    assert len(items) == 300
    assert len({item.id.split("-")[0] for item in items[:3]}) == 3
