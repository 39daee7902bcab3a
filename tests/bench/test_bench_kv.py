"""The comparison of KV memories on a small model: same tokens, bytes that add up, a verdict that can be negative."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.test_bench_formats import Chatty
from toolkit.bench import formats, kv
from toolkit.model.tiny import tiny_model


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(formats, "QUESTIONS", ("why?",))
    return kv.compare(tiny_model(), Chatty(), "ab" * 150)


def test_bytes_and_numbers_are_those_of_the_two_stores(compared: dict[str, Any]) -> None:
    config = tiny_model().config
    numbers = 2 * config.layers * config.kv_heads * config.head_dim
    assert compared["bytes_per_token"]["auto"] == 4 * numbers
    assert compared["bytes_per_token"]["q4"] == numbers / 2 + 2 * numbers / config.head_dim
    for name in ("text", "chat"):
        each = compared[name]
        assert each["tokens"] > 0 and each["auto"] != each["q4"] and each["ratio"] == each["q4"] / each["auto"]
        assert 0.5 < each["top1"] <= 1.0 and each["kl"] > 0


def test_a_memory_that_costs_more_than_allowed_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "QUESTIONS", ("why?",))
    monkeypatch.setattr(kv, "MOST", 0.5)
    assert kv.compare(tiny_model(), Chatty(), "ab" * 40)["verdict"] == "HOLD"
