"""`toolkit bench drill`: what it prints, what it refuses, how it ends."""

from __future__ import annotations

import json

import pytest

from toolkit.cli.app import main
from toolkit.gate import drill as drills


def test_the_last_line_is_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "drill", "--count", "18", "--audit", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["verdict"] == "PASS" and result["total"]["generations"] == 18 and result["audit"] == 1.0
    assert set(result["faults"]) >= {"none", "stale_kv"} and set(result["total"]) == set(drills.COLUMNS)


def test_an_invalid_text_that_passed_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(drills, "drill", lambda fault, numbers, audit: dict.fromkeys(drills.COLUMNS, 0) | {"generations": len(numbers), "delivered_invalid": int(fault == "stale_kv")})  # fmt: skip
    assert main(["bench", "drill", "--count", "18"]) == 1
    assert "delivered invalid" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--model", "tiny"], ["--overhead", "--count", "3"], ["--overhead", "--audit", "1"], ["--count", "0"], ["--audit", "2"]])  # fmt: skip
def test_options_that_say_nothing_are_refused(options: list[str]) -> None:
    assert main(["bench", "drill", *options]) == 2
