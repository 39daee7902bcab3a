"""Calibration: figures of a table that can be done by hand, and twins for the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.cli import main
from toolkit.errors import InputError, UsageError
from toolkit.jobs.calibrate import calibration, threshold
from toolkit.jobs.store import open_store


def finished(folder: Path, values: list[Any], confidences: list[dict[str, float]]) -> Path:
    with open_store(folder / "out", {"input": {}}, resume=False) as store:
        for index, (value, confidence) in enumerate(zip(values, confidences, strict=True)):
            store.add({"id": f"r{index}", "value": value, "confidence": confidence})
    return folder / "out"


def labels(folder: Path, values: dict[str, Any]) -> Path:
    (folder / "labels.jsonl").write_text(
        "".join(json.dumps({"id": name, "value": value}) + "\n" for name, value in values.items())
    )
    return folder / "labels.jsonl"


def test_the_figures_of_a_small_table(tmp_path: Path) -> None:
    values = [{"a": 1, "l": ["x", "y"]}, {"a": 2, "l": []}, {"a": 3, "l": []}, {"a": 4}]
    sure = [{"/a": 0.9, "/l/0": 0.55, "/l/1": 0.65}, {"/a": 0.95}, {"/a": 0.2}, {"/a": 0.3}]
    out = finished(tmp_path, values, sure)
    found = calibration(out, labels(tmp_path, {"r0": {"a": 1, "l": ["x"]}, "r1": {"a": 7}, "r2": {"a": 3.0}}))
    assert (found["records"], found["labelled"], found["without_confidence"]) == (4, 3, 0)
    field = found["fields"]["/a"]
    assert (field["count"], field["accuracy"]) == (3, pytest.approx(2 / 3))
    assert field["ece"] == pytest.approx((2 * abs(0.925 - 0.5) + abs(0.2 - 1)) / 3)
    assert field["brier"] == pytest.approx((0.1**2 + 0.95**2 + 0.8**2) / 3)
    assert [row["count"] for row in field["bins"]] == [0, 0, 1, 0, 0, 0, 0, 0, 0, 2]
    assert found["fields"]["/l/*"]["accuracy"] == 0.5  # the label has no second item


@given(
    st.lists(st.tuples(st.sampled_from([0.1, 0.3, 0.5, 0.9, 1.0]), st.booleans()), min_size=1, max_size=12),
    st.sampled_from([0.5, 0.8, 1.0]),
)
def test_the_threshold_is_the_least_from_which_on_enough_are_right(pairs: list[tuple[float, bool]], target: float) -> None:
    def enough(least: float) -> bool:
        above = [right for sure, right in pairs if sure >= least]
        return sum(above) >= target * len(above)

    assert threshold(pairs, target) == min((sure for sure, _ in pairs if enough(sure)), default=None)


def test_labels_that_are_none_and_labels_of_others_are_refused(tmp_path: Path) -> None:
    out = finished(tmp_path, [{"a": 1}], [{"/a": 0.5}])
    with pytest.raises(UsageError, match="no id of"):
        calibration(out, labels(tmp_path, {"other": 1}))
    (tmp_path / "labels.jsonl").write_text('{"id": "r0", "value": 1}\n{"id": 1}\n')
    with pytest.raises(InputError, match=r"labels\.jsonl:2: a label is an object"):
        calibration(out, tmp_path / "labels.jsonl")
    with pytest.raises(UsageError, match="does not exist"):
        calibration(tmp_path / "none", labels(tmp_path, {"r0": 1}))


@pytest.mark.parametrize(
    ("out", "labels", "said"),
    [
        (None, b'{"id": "r0"', "labels.jsonl:1: "),
        (None, b"\xff\n", "not utf-8"),
        (None, b'{"id": "r0", "value": 1}\n{"id": "r0", "value": 2}', "labels.jsonl:2: id 'r0' has a label already"),
        (None, b'{"id": [], "value": 1}', "the id is a list"),
        (b"not json\n", b'\xef\xbb\xbf{"id": "r0", "value": 1}', "was not written by a job"),
        (b'{"confidence": 3, "index":0}\n', b'{"id": "r0", "value": 1}', "there is nothing to compare"),
        (b'{"id":"r0", "confidence":[1], "index":0}\n', b'{"id": "r0", "value": 1}', None),
    ],
)
def test_what_cannot_be_read_is_exit_code_2_and_lines_that_lack_everything_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], out: bytes | None, labels: bytes, said: str | None
) -> None:
    finished(tmp_path, [{"a": 1}], [{"/a": 0.5}])
    (tmp_path / "labels.jsonl").write_bytes(labels)
    if out is not None:
        (tmp_path / "out").write_bytes(out)
    code = main(["calibrate", str(tmp_path / "out"), "--labels", str(tmp_path / "labels.jsonl"), "--json"])
    shown = capsys.readouterr()
    if said is None:
        assert (code, json.loads(shown.out)["without_confidence"]) == (0, 1)
    else:
        assert (code, shown.out) == (2, "") and said in shown.err


def test_the_command_prints_a_table_for_every_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = finished(tmp_path, [{"a": 1}, {"a": 2}], [{"/a": 0.5}, {"/a": 0.9}])
    assert main(["calibrate", str(out), "--labels", str(labels(tmp_path, {"r0": {"a": 1}, "r1": {"a": 1}})), "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["fields"]["/a"]["accuracy"] == 0.5
    assert "0.50 to 0.60" in shown.err and "2 of 2 records have a label" in shown.err
