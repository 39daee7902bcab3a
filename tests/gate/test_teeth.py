"""The gate on every planted fault: each is held, by the part that has to catch it; the intact arms pass. And teeth can fail."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from toolkit.cli import main
from toolkit.gate import teeth
from toolkit.gate.faults import FAULTS
from toolkit.gate.report import Report
from toolkit.plugins import Table

QUIET = Console(quiet=True)
PAGE = Path(__file__).parents[2] / "docs" / "teeth.json"


def test_every_planted_fault_is_held() -> None:
    result = teeth.run(seeds=0, is_hasty=True, console=QUIET)
    assert result["reasons"] == [] and result["verdict"] == "PASS"
    assert result["held"] == len(FAULTS) and all(row["caught_by"] for row in result["faults"])


@pytest.mark.slow
def test_every_intact_arm_passes() -> None:
    result = teeth.run([], seeds=1, console=QUIET)
    assert result["reasons"] == [] and result["passed"] == len(teeth.ARMS)


def reported(verdict: str) -> Any:
    def run_gate(*engines: Any, **options: Any) -> Report:
        return Report(verdict=verdict, reasons=() if verdict == "PASS" else ("books: one", "canary x: two", "books: three"), tier="quick", seed=0)  # type: ignore[arg-type] # fmt: skip

    return run_gate


@pytest.mark.parametrize("verdict", ["PASS", "INCONCLUSIVE"])
def test_a_gate_that_lets_a_fault_pass_or_cannot_tell_has_no_teeth(verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teeth, "run_gate", reported(verdict))
    result = teeth.run(["stale_kv"], seeds=0, console=QUIET)
    assert result["verdict"] == "HOLD" and result["reasons"] == [f"the fault stale_kv was not held: {verdict}"]


def test_a_gate_that_holds_everything_has_no_teeth_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teeth, "run_gate", reported("HOLD"))
    result = teeth.run([], seeds=2, console=QUIET)
    assert result["verdict"] == "HOLD" and len(result["reasons"]) == 2 * len(teeth.ARMS)


def test_a_row_says_which_parts_caught_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teeth, "run_gate", reported("HOLD"))
    result = teeth.run(["stale_kv"], seeds=0, console=QUIET)
    assert result["faults"][0]["caught_by"] == ["books", "canary x"] and result["verdict"] == "PASS"
    assert "| stale kv | books; canary x | HOLD |" in teeth.markdown(result)


def test_the_command_ends_with_the_verdict(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(teeth, "run_gate", reported("PASS"))
    monkeypatch.setattr(teeth, "FAULTS", Table("fault", {"stale_kv": FAULTS["stale_kv"]}))
    assert main(["gate", "--teeth", "--seeds", "1", "--json"]) == 1
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["verdict"] == "HOLD" and len(result["faults"]) == 1


def test_the_table_of_the_page_is_that_of_a_run_over_all_faults() -> None:
    """`toolkit gate --teeth --json > docs/teeth.json`, then UPDATE_README=1 with this test writes the table."""
    kept = json.loads(PAGE.read_text(encoding="utf-8"))
    assert [row["fault"] for row in kept["faults"]] == list(FAULTS) and kept["verdict"] == "PASS"
    page = PAGE.with_suffix(".md")
    text = page.read_text(encoding="utf-8")
    fresh = re.sub(
        r"(<!-- generated: teeth -->\n).*?(<!-- end -->)", lambda m: m[1] + teeth.markdown(kept) + m[2], text, flags=re.DOTALL
    )
    if os.environ.get("UPDATE_README"):
        page.write_text(fresh, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == fresh, "run UPDATE_README=1 pytest tests/gate/test_teeth.py"
