"""Ratios: the six figures of one run, each from the part that measured it; a part that was held gives none."""

from __future__ import annotations

import json
from typing import Any

from toolkit.bench import ratios

BEAMS: dict[str, Any] = {
    "verdict": "PASS", "reasons": [], "arms": [{"name": "greedy", "e2e_s": 1.0}], "ceiling": {"beam4_vs_greedy": 1.5},
    "ratios": {"beam4_vs_greedy": 2.0, "beam4_vs_transformers": 0.4},
    "quartiles": {"beam4_vs_greedy": (1.5, 2.5), "beam4_vs_transformers": (0.3, 0.5)},
}  # fmt: skip
PLAIN: dict[str, Any] = {
    "verdict": "PASS", "reasons": [], "arms": {"plain": (9.0, 10.0, 11.0)},
    "ratios": {"batch8_vs_1": (3.0, 4.0, 5.0), "plain_vs_llamacpp": (1.0, 2.0, 3.0)},
}  # fmt: skip
SPECULATION: dict[str, Any] = {
    "verdict": "PASS", "reasons": [], "arms": [{"name": "mtp"}], "ceiling": {"chat": {"mtp": 2.2}},
    "ratios": {
        "speculative_arm": "mtp", "speculative_vs_llamacpp": 1.7, "speculative_vs_llamacpp_quartiles": (1.5, 1.9),
        "copy_arm": "ngram", "copy_vs_llamacpp": 3.5, "copy_vs_llamacpp_quartiles": (3.0, 4.0),
    },
}  # fmt: skip


def test_one_run_has_all_six_ratios_with_their_quartiles() -> None:
    found = ratios.combine({"beams": BEAMS, "plain": PLAIN, "speculation": SPECULATION})
    assert found["verdict"] == "PASS" and found["reasons"] == []
    assert found["ratios"] == {
        "beam4_vs_greedy": 2.0, "beam4_vs_transformers": 0.4, "batch8_vs_1": 4.0, "plain_vs_llamacpp": 2.0,
        "speculative_vs_llamacpp": 1.7, "copy_vs_llamacpp": 3.5,
    }  # fmt: skip
    assert found["quartiles"]["batch8_vs_1"] == (3.0, 5.0) and found["quartiles"]["copy_vs_llamacpp"] == (3.0, 4.0)
    assert [arm["name"] for arm in found["arms"]] == ["greedy", "plain", "mtp"]
    assert found["ceiling"] == {"beams": {"beam4_vs_greedy": 1.5}, "speculation": {"chat": {"mtp": 2.2}}}
    assert ("copy_vs_llamacpp", "3.50", "3.00-4.00") in ratios.lines(found)
    json.dumps(found)


def test_a_part_that_was_held_gives_no_ratio_and_holds_the_whole() -> None:
    held = {**PLAIN, "verdict": "HOLD", "reasons": ["texts differ"]}
    found = ratios.combine({"beams": BEAMS, "plain": held})
    assert found["verdict"] == "HOLD" and found["reasons"] == ["plain: texts differ"]
    assert set(found["ratios"]) == {"beam4_vs_greedy", "beam4_vs_transformers"}


def test_a_part_that_was_not_asked_for_is_no_reason() -> None:
    assert ratios.combine({"plain": PLAIN})["verdict"] == "PASS"
