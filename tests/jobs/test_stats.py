"""Distributions over a job's lines, next to counting by hand."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.jobs.finished import finished
from toolkit.jobs.review import script_json
from toolkit.jobs.review_lines import job_lines
from toolkit.jobs.review_record import page_record
from toolkit.jobs.stats import MAX_AMOUNTS, MAX_FIELDS, MAX_VALUES, OTHERS, Spread, stats_of
from toolkit.results import json_text


def lines() -> Iterator[dict[str, Any]]:
    for index, (name, count, sure) in enumerate(
        [("Mia", 2, 0.95), ("Mia", -3, 0.15), ("Jonathan", 2.5, 1.0), (None, None, 0.5)]
    ):
        yield {
            "index": index, "value": {"name": name, "items": [{"n": count}, {"n": 1}]} if count else {"name": name},
            "confidence": {"/name": sure}, "spans": {"/name": [0, 3] if name == "Mia" else None},
            "needs_review": sure < 0.5, "review_reasons": [{"path": "/items/1/n", "reason": "low confidence"}] * 2 if sure < 0.5 else [],
            "timing": {"e2e_s": 1.0 + index}, "usage": {"output_tokens": 10, "input_tokens": 5},
        }  # fmt: skip
    yield {"index": 4, "stage": "validate", "reason": "no value fits"}
    yield {"index": 5, "stage": "validate", "reason": "no value fits"}
    yield {"index": 6, "stage": "read", "reason": "not JSON"}


def test_counts_are_those_made_by_hand() -> None:
    found = stats_of(lines())
    assert (found["records"], found["valid"], found["failed"], found["needs_review"]) == (7, 4, 3, 1)
    assert found["errors"] == {
        "by_stage": {"validate": 2, "read": 1},
        "reasons": {"validate: no value fits": 2, "read: not JSON": 1},
    }
    assert found["review_reasons"] == {"/items/*/n: low confidence": 1}
    assert list(found["fields"]) == ["/name", "/items/*/n"]
    name, count = found["fields"]["/name"], found["fields"]["/items/*/n"]
    assert (name["present"], name["missing"], name["distinct"]) == (4, 0, 3)
    assert (name["types"], name["values"]) == ({"string": 3, "null": 1}, {"Mia": 2, "Jonathan": 1, "null": 1})
    assert (name["grounded"], name["length"]["p50"], name["length"]["max"]) == ({"found": 2, "not found": 2}, 3, 8)
    assert name["confidence"]["histogram"] == [0, 1, 0, 0, 0, 1, 0, 0, 0, 2] and name["confidence"]["min"] == 0.15
    assert (count["present"], count["missing"], count["types"]) == (3, 1, {"integer": 5, "number": 1})
    assert (count["negative"], count["amount"]["max"], count["confidence"]) == (1, 3, None)
    assert (found["seconds"]["mean"], found["seconds"]["p50"], found["seconds"]["max"]) == (2.5, 2.0, 4.0)
    assert found["usage"] == {"input_tokens": 20, "output_tokens": 40}


def test_a_real_jobs_files_are_counted(tmp_path: Path) -> None:
    out = finished(tmp_path, {"Mia is here": {"n": "Mia"}, "nobody": None, "Ada": {"n": "Ada", "x": []}})
    found = stats_of(job_lines(out))
    assert (found["valid"], found["errors"]["by_stage"]) == (2, {"validate": 1})
    assert {path: each["present"] for path, each in found["fields"].items()} == {"/n": 2, "/x": 1}
    assert found["fields"]["/n"]["grounded"] == {"found": 2}


@given(st.lists(st.integers(0, 60), min_size=1))
def test_quantiles_of_few_amounts_are_exact(amounts: list[int]) -> None:
    spread = Spread()
    for amount in amounts:
        spread.add(amount)
    ranked = sorted(amounts)
    for share in (0.01, 0.5, 0.9, 1.0):
        by_hand = next(amount for amount in ranked if sum(each <= amount for each in ranked) >= share * len(ranked))
        assert spread.quantile(share) == by_hand


def test_quantiles_of_many_amounts_are_near_and_memory_is_bounded() -> None:
    spread, amounts = Spread(), [1.001**index for index in range(10 * MAX_AMOUNTS)]
    for amount in amounts:
        spread.add(amount)
    assert len(spread.amounts) <= MAX_AMOUNTS
    assert spread.quantile(0.5) == pytest.approx(statistics.median(amounts), rel=0.13)
    assert (spread.fields() or {})["max"] == amounts[-1]


def test_what_no_longer_fits_is_counted_under_a_name_that_says_so() -> None:
    many = MAX_VALUES + 200
    found = stats_of({"index": index, "value": {"id": f"v{index}", f"k{index}": 1}} for index in range(many))
    assert len(found["fields"]) == MAX_FIELDS + 1 or OTHERS not in found["fields"]
    assert found["fields"]["/id"]["distinct"] is None
    wide = stats_of([{"index": 0, "value": {f"k{number}": 1 for number in range(MAX_FIELDS + 50)}}])
    assert len(wide["fields"]) == MAX_FIELDS + 1 and wide["fields"][OTHERS]["types"] == {"integer": 50}


def test_lines_that_lack_everything_are_counted_too() -> None:
    found = stats_of([{"index": 0, "value": 3}, {"index": 1}])
    assert (found["valid"], found["seconds"], list(found["fields"])) == (2, None, [""])


ODD = st.sampled_from([None, 3, True, -(10**400), 10**400, 1e308, "x", [], [None], {}, {"/a": 10**400}, {"/a": "x"}, {"/a": [5, 1]}, {"/a": None}, {"e2e_s": 10**400, "output_tokens": "x"}])  # fmt: skip
NAMES = ("id", "value", "alternatives", "confidence", "usage", "timing", "spans", "span_detail", "review_reasons", "provenance", "stage", "reason", "text")  # fmt: skip


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from(NAMES), ODD))
def test_whatever_a_line_holds_it_is_counted_and_shown_and_both_can_be_written_as_json(odd: dict[str, Any]) -> None:
    line = {"value": {"a": 1}, "confidence": {"/a": 0.5}, "spans": {"/a": [0, 1]}, "timing": {"e2e_s": 1}, **odd, "index": 0}
    assert json.loads(json_text(stats_of([line, line])))["records"] == 2
    assert json.loads(script_json(page_record(line, "text")))["index"] == 0
