"""Sampled texts: how much is drawn, and what is said where the control is missed."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.gate import sampled
from toolkit.gate.arm import Arm
from toolkit.gate.frequencies import Text, compare
from toolkit.gate.report import Findings

COUNT = 32


@pytest.fixture(scope="module")
def tiny() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine("tiny") as engine:
        yield engine


def row(engine: EmbeddedEngine) -> tuple[int, Findings]:
    findings = Findings()
    few = sampled.settings(engine, 0)[0]
    found = sampled._row(few, Arm("baseline", engine), Arm("candidate", engine), COUNT, 0, findings)
    assert found is not None and few.name == "few tokens"
    return found["texts"], findings


def test_a_control_that_is_seen_at_once_needs_no_second_look(tiny: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled, "WARMER", 50.0)
    texts, findings = row(tiny)
    assert (texts, findings.holds, findings.doubts) == (COUNT, [], [])


def test_a_control_that_is_missed_gets_more_texts_and_is_seen(tiny: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled, "WARMER", 2.1)
    texts, findings = row(tiny)
    assert (texts, findings.holds, findings.doubts) == ((1 + sampled.MORE) * COUNT, [], [])


def test_a_control_that_is_no_control_is_a_doubt_after_the_second_look(
    tiny: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampled, "WARMER", 1.0)
    texts, findings = row(tiny)
    assert (texts, findings.holds) == ((1 + sampled.MORE) * COUNT, [])
    assert len(findings.doubts) == 1 and "sees too little" in findings.doubts[0]


def test_looks_share_the_rate_of_false_alarms() -> None:
    one, two = [Text((1,))] * 12 + [Text((2,))] * 8, [Text((1,))] * 4 + [Text((2,))] * 16
    once, twice = compare(one, two), compare(one, two, looks=2)
    assert math.isclose(twice.p, 2 * once.p) and twice.tests == 2 * once.tests
