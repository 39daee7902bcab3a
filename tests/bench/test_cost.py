"""Cost: every point is measured, a row that depends on others withholds all of them, pictures say what was measured."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from toolkit.bench import cost
from toolkit.bench.curves import HEIGHT, WIDTH, Point, chart
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.errors import UsageError


@pytest.fixture(scope="module")
def tiny() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine("tiny", format="float32", kv_blocks=1024) as engine:
        yield engine


@pytest.fixture(scope="module")
def measured(tiny: EmbeddedEngine) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost, "read_bandwidth", lambda size: 1e9)
        return cost.run(tiny, longest=512, rounds=1, console=Console(file=io.StringIO()))


def test_every_point_of_every_arm_is_there_and_the_ceiling_is_weights_over_bandwidth(measured: dict[str, Any]) -> None:
    assert measured["verdict"] == "PASS"
    sizes = {arm["name"]: [point["at"] for point in arm["points"]] for arm in measured["arms"]}
    lengths = [64, 128, 256, 512]
    assert sizes == {"prompt": lengths, "length": lengths, "rows": list(cost.ROWS), "width": list(cost.WIDTHS)}
    assert all(0 < p["q1"] <= p["median"] <= p["q3"] for arm in measured["arms"] for p in arm["points"])
    assert {"rows8_vs_1", "beam4_vs_1", "length512_vs_64", "pass_vs_ceiling"} <= set(measured["ratios"])
    assert cost._least({"weight_bytes": 9e6, "kv_bytes_token": 100.0, "read_bytes_s": 1e9}, 1000, 10) == pytest.approx(10.0)


def test_a_row_that_depends_on_the_others_withholds_every_figure(tiny: EmbeddedEngine) -> None:
    bench = cost._Bench(tiny, 512)
    bench.gap = 2 * cost.TOLERANCE
    result = bench.judged({})
    assert (result["verdict"], result["arms"], result["ratios"]) == ("HOLD", [], {}) and "alone and together" in result[
        "reasons"
    ][0]
    assert cost.pictures(result) == {}


def test_pictures_are_well_formed_and_all_points_lie_inside(measured: dict[str, Any]) -> None:
    found = cost.pictures(measured)
    assert sorted(found) == ["cost-length.svg", "cost-prompt.svg", "cost-rows.svg", "cost-width.svg"]
    for text in found.values():
        circles = [each for each in ElementTree.fromstring(text).iter() if each.tag.endswith("circle")]
        assert len(circles) in (4, 5, 6)
        assert all(0 < float(each.get("cx", 0)) < WIDTH and 0 < float(each.get("cy", 0)) < HEIGHT for each in circles)
    figure = chart("a & b", "x", "y", {"<s>": [Point(1, 1.0, 1.0, 1.0), Point(4, 2.0, 2.0, 2.0)]}, {"c": [(1, 0.5), (4, 0.5)]})
    assert len(list(ElementTree.fromstring(figure).iter())) > 20


def test_a_context_beyond_the_models_is_refused(tiny: EmbeddedEngine) -> None:
    with pytest.raises(UsageError, match="longest = 100000 is not allowed"):
        cost.run(tiny, longest=100000)
