"""Bandwidth: what this machine reads, at its best."""

from __future__ import annotations

import math
import time

import pytest

from toolkit.bench import bandwidth


def test_the_best_way_to_read_counts_and_one_that_is_not_there_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def slow(size: int) -> tuple[object, int]:
        sizes.append(size)
        return (lambda: time.sleep(0.02)), size

    monkeypatch.setattr(bandwidth, "_sum", slow)
    monkeypatch.setattr(bandwidth, "_product", lambda size: (lambda: None, 0))
    alone = bandwidth.read_bandwidth(bandwidth.LEAST, times=1)
    monkeypatch.setattr(bandwidth, "_product", lambda size: (lambda: None, size))
    assert alone <= bandwidth.LEAST / 0.02 < bandwidth.read_bandwidth(bandwidth.LEAST, times=1)
    bandwidth.read_bandwidth(1.0, times=1)
    bandwidth.read_bandwidth(1e15, times=1)
    assert sizes == [bandwidth.LEAST, bandwidth.LEAST, bandwidth.LEAST, bandwidth.MOST]


def test_both_ways_read_what_they_say() -> None:
    for prepare in (bandwidth._sum, bandwidth._product):
        read, count = prepare(bandwidth.LEAST)
        if count:
            read()
            assert abs(count - bandwidth.LEAST) <= 0.01 * bandwidth.LEAST
    found = bandwidth.read_bandwidth(bandwidth.LEAST, times=1)
    assert 0 < found < math.inf
