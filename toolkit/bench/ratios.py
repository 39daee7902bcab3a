"""Ratios: beams, plain decoding and speculation, each measured against its peers, as one result.

In: results of peers, plain and speculation, of which any may be missing.   Out: one JSON-ready dict.
Knows nothing about: how a part was measured.
Invariants: a part that was held gives no ratio, and the whole is then held.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SPEEDS = (
    "plain_vs_llamacpp",
    "batch8_vs_1",
    "batch8_vs_llamacpp8",
    "speculative_vs_llamacpp",
    "copy_vs_llamacpp",
    "speculative_vs_plain",
    "copy_vs_plain",
)
DEFINITION = (
    "medians over prompts or records; tokens a second of A over B's, more is better: " + ", ".join(SPEEDS)
    + "; all others are seconds of A over seconds of B, less is better"
)  # fmt: skip


def combine(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """`parts` may have beams, plain and speculation; their own results stay in `parts`."""
    ratios: dict[str, float] = {}
    quartiles: dict[str, tuple[float, float]] = {}
    arms: list[Any] = []
    for name, part in parts.items():
        if part["verdict"] != "PASS":
            continue
        if name == "plain":
            for ratio, (low, middle, high) in part["ratios"].items():
                ratios[ratio], quartiles[ratio] = middle, (low, high)
            arms += [{"name": arm, "decode_tok_s": middle} for arm, (_, middle, _) in part["arms"].items()]
            continue
        spread = part["quartiles"] if name == "beams" else {each: part["ratios"].get(f"{each}_quartiles") for each in SPEEDS}
        for ratio, value in part["ratios"].items():
            if spread.get(ratio) is not None:
                ratios[ratio], quartiles[ratio] = value, spread[ratio]
        arms += part["arms"]
    held = [name for name, part in parts.items() if part["verdict"] != "PASS"]
    return {
        "bench": "peers",
        "verdict": "HOLD" if held else "PASS",
        "reasons": [f"{name}: {reason}" for name in held for reason in parts[name]["reasons"]],
        "definition": DEFINITION,
        "ratios": ratios,
        "quartiles": quartiles,
        "arms": arms,
        "ceiling": {name: part["ceiling"] for name, part in parts.items() if "ceiling" in part},
        "parts": dict(parts),
    }


def lines(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Rows of the table: ratio, median, quartiles."""
    return [
        (name, f"{value:.2f}", "{:.2f}-{:.2f}".format(*result["quartiles"][name])) for name, value in result["ratios"].items()
    ]
