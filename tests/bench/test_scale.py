"""The arithmetic of scale, next to counting it out."""

from __future__ import annotations

import pytest

from toolkit.bench.scale import FLEETS, Cost, scale
from toolkit.errors import UsageError


def test_a_million_records_are_a_million_times_one() -> None:
    found = scale(Cost(3.6, efficiency=0.5, price_per_hour=2.0, watts=500, bytes_per_record=100), days=10)
    million, billion = found["amounts"]
    assert (million["machine_hours"], million["price"], million["kwh"]) == (2000.0, 4000.0, 1000.0)
    assert million["output_bytes"] == 100_000_000
    assert billion["machine_hours"] == 1000 * million["machine_hours"]
    assert [row["hours"] for row in million["fleets"]] == [2000 / size for size in FLEETS]
    assert million["wanted"]["machines"] == 9  # 2000 hours within 240: 8.33 of them


def test_the_fewest_machines_that_make_it_in_time_are_named() -> None:
    for days in (0.5, 1, 3, 30):
        for amount in scale(Cost(0.37), days=days)["amounts"]:
            machines = amount["wanted"]["machines"]
            assert amount["wanted"]["hours"] <= 24 * days
            assert machines == 1 or amount["machine_hours"] / (machines - 1) > 24 * days


def test_one_writer_bounds_a_job_and_more_jobs_lift_the_bound() -> None:
    (million, _) = scale(Cost(1.0, efficiency=1.0, writer_s=0.004))["amounts"]
    rows = {row["machines"]: row for row in million["fleets"]}
    assert (rows[100]["jobs"], rows[100]["hours_in_one_job"]) == (1, rows[100]["hours"])
    assert rows[1000]["hours_in_one_job"] == pytest.approx(4000 / 3600) and rows[1000]["jobs"] == 4
    assert million["records"] * 0.004 / rows[1000]["jobs"] <= 3600 * rows[1000]["hours"]


@pytest.mark.parametrize(
    "wrong", [{"seconds_per_record": 0}, {"seconds_per_record": 1, "efficiency": 1.5}, {"seconds_per_record": 1, "watts": -1}]
)
def test_numbers_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="is not allowed"):
        Cost(**wrong)
    with pytest.raises(UsageError, match="days"):
        scale(Cost(1.0), days=0)
