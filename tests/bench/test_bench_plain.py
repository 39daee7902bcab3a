"""Plain decoding is timed only where a batch gives what each request gives alone; the arithmetic of its figures."""

from __future__ import annotations

import pytest
from rich.console import Console

from toolkit.bench import plain
from toolkit.bench.llamacpp_peer import Run
from toolkit.engine.embedded import EmbeddedEngine

QUIET = Console(quiet=True)


class StandIn:
    """In place of llama.cpp: twice the tokens per second that the engine can have."""

    def greedy(self, prompt: list[int], count: int) -> Run:
        return Run(tuple(range(count)), 0.1, 0.1 + (count - 1) / 100.0)


def test_a_batch_that_equals_its_requests_alone_gives_ratios_against_the_peer() -> None:
    with EmbeddedEngine("tiny") as engine:
        found = plain.run(engine, peer=StandIn(), tokens=4, rounds=1, console=QUIET)  # type: ignore[arg-type]
    assert found["verdict"] == "PASS" and set(found["ratios"]) == {"batch8_vs_1", "plain_vs_llamacpp"}
    low, middle, high = found["arms"]["llamacpp"]
    assert (low, middle, high) == pytest.approx((100.0, 100.0, 100.0))
    assert found["ratios"]["plain_vs_llamacpp"][1] == pytest.approx(found["arms"]["plain"][1] / 100.0, rel=0.5)


def test_no_speed_is_given_where_a_batch_changes_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"plain": 10.0, "ttft": 0.1, "batch8": 40.0, "batch1": 10.0, "equal": False}
    monkeypatch.setattr(plain, "_row", lambda *_: row)
    with EmbeddedEngine("tiny") as engine:
        found = plain.run(engine, tokens=4, rounds=1, console=QUIET)
    assert found["verdict"] == "HOLD" and found["arms"] == found["ratios"] == {} and "8 of 8" in found["reasons"][0]
