"""Start: processes of the command line, seen from outside."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from toolkit.bench import start
from toolkit.errors import EngineError


def test_a_process_is_timed_to_its_first_byte_and_its_memory_is_its_own() -> None:
    found = start.started(["generate", "Hi", "--model", "tiny", "--max-tokens", "4"])
    assert 0 < found["first_s"] <= found["e2e_s"]
    assert 50 * start.MIB < found["peak_bytes"] < 4096 * start.MIB
    again = start.started(["--help"])
    assert again["peak_bytes"] < found["peak_bytes"]  # it loads no torch


def test_a_process_that_fails_is_an_error_with_its_command() -> None:
    with pytest.raises(EngineError, match="--model no-such-model ended with exit code 2"):
        start.started(["generate", "Hi", "--model", "no-such-model"])


def fake(texts: list[bytes]) -> Any:
    def started(arguments: list[str]) -> dict[str, Any]:
        fast = "int8" in arguments
        return {"first_s": 1.0 if fast else 4.0, "e2e_s": 5.0, "peak_bytes": 100 if fast else 400, "text": texts.pop()}

    return started


def test_ratios_are_of_the_formats_taken_in_turn_and_the_first_turn_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "started", fake([b"same"] * 6 + [b"warm"] * 2))
    found = start.run(rounds=3, console=Console(file=io.StringIO()))
    assert found["verdict"] == "PASS"
    assert found["ratios"]["first_s_int8_vs_float32"]["median"] == 0.25
    assert found["ratios"]["peak_bytes_int8_vs_float32"]["median"] == 0.25


def test_texts_that_differ_withhold_every_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "started", fake([b"a", b"a", b"a", b"b", b"warm", b"warm"]))
    found = start.run(rounds=2, console=Console(file=io.StringIO()))
    assert (found["verdict"], found["arms"], found["ratios"]) == ("HOLD", [], {})
