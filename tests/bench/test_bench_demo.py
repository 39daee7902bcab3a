"""The demo over a scripted engine: what is right is counted, everything shown is also data."""

from __future__ import annotations

import io
import itertools
import json
from typing import Any

import pytest
from rich.console import Console

from tests.bench.bench_scripted import ScriptedEngine
from toolkit.bench import bfcl, demo
from toolkit.contracts import Json, Request
from toolkit.errors import UsageError


@pytest.fixture(autouse=True)
def package() -> None:
    pytest.importorskip("importlib.metadata").distribution("bfcl-eval")


def answers() -> dict[str, Json]:
    """An accepted answer by request text: the prompt ends in it."""
    found = {}
    for item in bfcl.load().items:
        found[item.text] = {name: values[0] for name, values in item.gold[0].items() if "" not in values}
    return found


def scripted() -> ScriptedEngine:
    right = answers()

    def script(request: Request) -> list[tuple[Json, float]]:
        turn: Any = request.prompt[-1]
        value = right[turn["content"].split("\nRequest: ", 1)[1]]
        if request.beam is None:
            return [('\0{"cut', -8.0)]
        return [(value, -1.0), ({}, -4.0)]

    return ScriptedEngine(script)


def test_the_demo_counts_what_is_right_and_shows_every_request() -> None:
    console = Console(file=io.StringIO(), width=120)
    found = demo.run(scripted(), limit=3, console=console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert found["right"] == {"greedy": 0, "beam4": 3, "top4": 3} and found["of"] == 3
    assert all(f"{number}/3" in text for number in (1, 2, 3))
    assert "✔" in text and "✘" in text and "cut off" in text and "confidence" in text
    assert found["records"][0]["beam"]["confidence"]["/x"]["product"] == 0.5
    json.dumps(found)


def test_requests_are_spread_evenly_over_the_file() -> None:
    task = bfcl.load()
    ids = [int(item.id.rsplit("_", 1)[1]) for item in demo.spread(task, 12)]
    assert len(set(ids)) == 12
    assert all(30 <= later - earlier <= 37 for earlier, later in itertools.pairwise(ids))
    with pytest.raises(UsageError, match="limit"):
        demo.spread(task, 0)


def test_the_first_request_goes_alone_and_none_is_lost() -> None:
    items = bfcl.load().items[:10]
    found = demo.groups(items)
    assert [len(group) for group in found] == [1, 4, 4, 1]
    assert [item for group in found for item in group] == list(items)
    assert demo.groups(items[:1]) == [items[:1]]


def test_a_beam_without_a_valid_answer_is_shown_and_not_an_error() -> None:
    console = Console(file=io.StringIO(), width=120)
    engine = ScriptedEngine(lambda request: [("\0{broken [/]", -8.0)])
    found = demo.run(engine, limit=1, console=console)
    assert found["right"]["beam4"] == 0
    assert "no valid answer" in console.file.getvalue()  # type: ignore[attr-defined]
