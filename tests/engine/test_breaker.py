"""The breaker trips when there are too many faults in its window, and stays until it is told why it may close."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from toolkit.engine.breaker import CLOSED, HOLD, Breaker
from toolkit.errors import UsageError


def test_it_trips_at_one_fault_more_than_is_allowed() -> None:
    breaker = Breaker(2, window=10)
    for fault in (True, False, True, False):
        breaker.count(fault)
    assert breaker.state == CLOSED
    breaker.count(True)
    assert breaker.state == HOLD and breaker.trips == 1
    assert "3 faults among the last 5" in breaker.reason


def test_faults_that_left_the_window_are_forgotten() -> None:
    breaker = Breaker(1, window=5)
    for _ in range(4):
        breaker.count(True)
        for _ in range(5):
            breaker.count(False)
    assert breaker.state == CLOSED
    breaker.count(True)
    breaker.count(True)
    assert breaker.is_held


def test_held_it_counts_but_does_not_trip_again_and_a_reset_forgets_the_past(caplog: pytest.LogCaptureFixture) -> None:
    breaker = Breaker(0, window=3)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            breaker.count(True)
        assert breaker.trips == 1
        breaker.reset("the gate has passed")
    assert [HOLD in each.message for each in caplog.records] == [True, True] and "the gate has passed" in caplog.text
    assert breaker.state == CLOSED
    breaker.count(False)
    assert breaker.state == CLOSED
    breaker.count(True)
    assert breaker.trips == 2


def test_without_a_limit_it_never_trips() -> None:
    breaker = Breaker(None)
    for _ in range(100):
        breaker.count(True)
    assert breaker.state == CLOSED


@pytest.mark.parametrize("options", [{"most": -1}, {"most": True}, {"most": 1.5}, {"window": 0}, {"window": 10**9}])
def test_a_breaker_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Breaker(**options)
    with pytest.raises(UsageError, match="reason"):
        Breaker().reset("")
