"""Prefix: figures of processes that found a prompt, those that wrote it and those that knew no folder."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from toolkit.bench import prefix

RESTORED = {"without": 0, "first": 0, "found": 90}
SECONDS = {"without": 2.0, "first": 2.2, "found": 0.1}


def told(name: str, tokens: list[int], restored: int) -> dict[str, Any]:
    timing = {"ttft_s": SECONDS[name], "e2e_s": 3 + SECONDS[name]}
    return {"token_ids": tokens, "usage": {"input_tokens": 100, "restored_tokens": restored}, "timing": timing}


def found(changed: str = "", tokens: tuple[int, ...] = (1, 2), restored: int = 90) -> list[dict[str, dict[str, Any]]]:
    rows = [{name: told(name, [1, 2], RESTORED[name]) for name in prefix.ARMS} for _ in range(3)]
    if changed:
        rows[1][changed] = told(changed, list(tokens), restored)
    return rows


def test_figures_are_medians_of_ratios_taken_round_by_round() -> None:
    result = prefix.summary(found())
    assert result["verdict"] == "PASS" and result["ratios"]["found_vs_without"]["ttft_s"]["median"] == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("rows", "why"), [(found("first", (1, 3)), "different tokens"), (found("found", restored=9), "did not find")]
)
def test_other_tokens_or_a_prompt_that_was_not_found_withhold_every_figure(rows: list[Any], why: str) -> None:
    result = prefix.summary(rows)
    assert (result["verdict"], result["arms"], result["ratios"]) == ("HOLD", [], {}) and why in result["reasons"][0]


def test_each_round_has_a_folder_of_its_own_written_first_and_found_then(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def started(arguments: list[str]) -> dict[str, Any]:
        folder = arguments[arguments.index("--prefix-cache") + 1] if "--prefix-cache" in arguments else ""
        name = "found" if folder and (folder,) in asked else "first" if folder else "without"
        asked.append((folder,))
        return {"text": json.dumps(told(name, [1, 2], RESTORED[name])).encode() + b"\n", "e2e_s": 4.0}

    monkeypatch.setattr(prefix, "started", started)
    result = prefix.run(model="tiny", tokens=200, rounds=2, console=Console(file=io.StringIO()))
    assert result["verdict"] == "PASS" and result["tokens"] == 100
    assert len(asked) == 9 and len(set(asked)) == 4  # a new folder a round, and none
    assert len(prefix.prompt("tiny", 200)) == 200
