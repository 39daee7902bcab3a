"""Guard cost: what is measured is the guard, and a figure is only given beside equal texts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rich.console import Console

from toolkit.bench import guard_cost
from toolkit.engine.embedded import EmbeddedEngine


@pytest.fixture
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine("tiny", drafter="ngram", kv_blocks=256) as opened:
        yield opened


def test_watched_and_unwatched_texts_are_paired_and_equal(engine: EmbeddedEngine) -> None:
    result = guard_cost.run(engine, rounds=1, tokens=20, console=Console(quiet=True))
    assert result["texts"] == 4 and "watched and unwatched texts differ" not in result["reasons"]
    assert 0 < result["share"][0] <= result["share"][1] <= result["share"][2] and result["ratio"][1] > 0
    assert (result["verdict"] == "HOLD") == bool(result["reasons"])


def test_a_guard_that_takes_too_long_is_held_back(engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_cost, "LIMIT", 1e-9)
    result = guard_cost.run(engine, rounds=1, tokens=8, console=Console(quiet=True))
    assert result["verdict"] == "HOLD" and "of decode time" in result["reasons"][0]
