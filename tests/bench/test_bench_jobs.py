"""bench jobs: figures for every part, and none for throughput where arms disagree."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from toolkit.bench import jobs
from toolkit.bench.null_engine import NullEngine
from toolkit.cli import main
from toolkit.contracts import BeamResult, Done, Event, Hypothesis, Request
from toolkit.errors import UnsupportedError, UsageError

QUIET = Console(file=io.StringIO())


class Orders(NullEngine):
    """Answers every order rightly; the first `wrong` of a job with more than one in flight are another's."""

    def __init__(self, *, wrong_from: int | None = None) -> None:
        super().__init__()
        self.asked = itertools.count()
        self.wrong_from = wrong_from

    def generate(self, requests: Iterable[Request]) -> Iterator[Event]:
        for request in requests:
            number = int(str(request.prompt[-1]["content"]).rstrip(".").rsplit(" ", 1)[1]) if request.id != "preflight" else 0  # type: ignore[index]
            late = self.wrong_from is not None and next(self.asked) >= self.wrong_from
            value = jobs.order(number + late)[1]
            text = json.dumps(value)
            best = Hypothesis(text=text, token_ids=(1,), token_logprobs=(-0.1,), score=-0.1, sum_logprob=-0.1, value=value)
            result = BeamResult(value=value, text=text, valid=True, score=-0.1, sum_logprob=-0.1, alternatives=(best,))
            yield Done(request.id, 0, replace(result))


def test_throughput_is_told_where_every_arm_has_the_same_values() -> None:
    found = jobs.run(Orders(), parts=("throughput",), records=10, in_flight=(2, 4), console=QUIET)
    assert (found["verdict"], found["throughput"]["right"]) == ("PASS", 10)
    arms = found["throughput"]["arms"]
    assert [(arm["in_flight"], arm["valid"], arm["same"]) for arm in arms] == [(1, 10, 10), (2, 10, 10), (4, 10, 10)]
    assert all(arm["records_per_s"] > 0 for arm in arms)


def test_no_throughput_is_told_where_an_arm_has_other_values() -> None:
    found = jobs.run(Orders(wrong_from=20), parts=("throughput",), records=10, in_flight=(4,), console=QUIET)
    assert found["verdict"] == "HOLD" and found["throughput"]["arms"] == []
    assert "4 in flight: 10 valid" in found["reasons"][0]


def test_no_throughput_is_told_where_nothing_was_valid() -> None:
    found = jobs.run(NullEngine(), parts=("throughput",), records=3, in_flight=(2,), console=QUIET)
    assert found["verdict"] == "HOLD" and "0 valid" in found["reasons"][0]


def test_the_other_parts_give_their_figures() -> None:
    found = jobs.run(NullEngine(), parts=("overhead", "linearity", "memory"), most=10, many=100, console=QUIET)
    assert found["overhead"]["records"] == 2 and found["overhead"]["cpu_ms_per_record"] > 0
    assert [row["records"] for row in found["linearity"]["rows"]] == [10]
    assert found["memory"]["records"] == 100


def test_where_the_system_does_not_tell_memory_that_part_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(jobs, "STATM", tmp_path / "none")
    with pytest.raises(UnsupportedError, match="leave out --part memory"):
        jobs.run(NullEngine(), parts=("memory",), many=50, console=QUIET)


def test_the_null_engine_refuses_what_it_does_not_do() -> None:
    with pytest.raises(UsageError):
        list(NullEngine().generate([Request(prompt="a")]))
    with pytest.raises(UsageError):
        NullEngine().score("a", [[1]])


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "jobs", "--model", "tiny", "--threads", "1", "--part", "overhead", "--many", "50", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "PASS"
