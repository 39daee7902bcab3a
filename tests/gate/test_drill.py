"""The drill, small: each fault does something, none gets past the guard, and the drill itself can tell."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from toolkit.contracts import Done, Report, Request, SamplingParams
from toolkit.engine.loops.inquest import Inquest
from toolkit.engine.watch import Checks
from toolkit.gate import drill as drills
from toolkit.gate.drill import drill, echo_engine, run
from toolkit.gate.echo import is_clear, prompt_of
from toolkit.gate.faults import DRILLED, FAULTS
from toolkit.gate.records import document, problem

QUIET = Console(quiet=True)


def test_nothing_invalid_gets_past_the_guard() -> None:
    result = run(count=40 * 9, audit=0.5, console=QUIET)
    assert result["verdict"] == "PASS", result["reasons"]
    assert result["total"]["generations"] == 360
    assert result["faults"]["none"] == dict.fromkeys(drills.COLUMNS, 0) | {"generations": 40}
    for name in DRILLED:
        row = result["faults"][name]
        assert row["altered"] > 10, name
        assert row["altered"] == row["repaired"] + row["reported"] + row["unnoticed"]
        found = sum(row[each] for each in ("parser", "validator", "audit", "grammar", "engine"))
        # what was repaired was caught on its way; what is reported may have been found by the last validation alone
        assert row["repaired"] <= found <= row["repaired"] + row["reported"]


def test_with_every_text_audited_nothing_goes_unnoticed() -> None:
    for name in ("tokens_fused", "stale_kv"):
        row = drill(name, range(30), 1.0)
        assert row["unnoticed"] == row["delivered_invalid"] == 0 and row["audit"] > 0 and row["repaired"] == row["altered"]


def test_a_guard_that_does_not_look_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The teeth of the drill itself: nobody looks while a text comes, and the last word believes everything."""
    monkeypatch.setattr(Inquest, "opens", lambda *_: False)
    monkeypatch.setattr(Checks, "report", lambda self, text, raw, reason: Report(text))
    result = run(count=90, audit=0.0, console=QUIET)
    assert result["verdict"] == "HOLD" and result["total"]["delivered_invalid"] > 20


def test_a_text_that_nobody_has_judged_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Inquest, "opens", lambda *_: False)
    monkeypatch.setattr(Checks, "of", classmethod(lambda cls, request: None))
    row = drill("token_duplicated", range(1, 21, 2), 0.0)  # watched only: no mask stops the fault
    assert row["reported"] == 0 and row["delivered_invalid"] > 0


@pytest.mark.parametrize("name", list(FAULTS))
def test_a_fault_says_what_it_is_and_why(name: str) -> None:
    from importlib import import_module

    module: Any = import_module(FAULTS[name].partition(":")[0])
    assert module.NAME and len(module.WHY) > 30 and module.break_ is FAULTS.load(name)
    assert module.__name__.rpartition(".")[2] == name


def test_the_echo_model_copies_every_document_plainly_and_speculated() -> None:
    with echo_engine() as engine:
        texts = [document(number) for number in range(40)]
        assert len(set(texts)) == 40 and all(is_clear(text.encode()) for text in texts)
        for speculate in (False, True):
            requests = (
                Request(
                    id=str(i), prompt=prompt_of(text.encode()), sampling=SamplingParams(max_tokens=150), speculate=speculate
                )
                for i, text in enumerate(texts)
            )
            for event in engine.generate(requests):
                if isinstance(event, Done):
                    assert event.result.text == texts[int(event.request_id)]
                    assert (event.result.usage.accepted > 20) == speculate


def test_a_document_is_judged_without_the_validators() -> None:
    good = document(3)
    assert problem(good, good.encode()) is None
    for bad in (good[:-1], good + "}", "{" + good, good.replace('"ok":', '"no":'), good.replace('"n":', '"n":-'), good.replace("{", '{"ok":true,', 1), "[]", "NaN"):  # fmt: skip
        assert problem(bad, bad.encode()) is not None, bad
    assert problem(good, good.encode()[:5] + b"\xff") is not None
