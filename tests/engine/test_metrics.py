"""Metrics: what was counted, in a text that a parser of the format can read."""

from __future__ import annotations

import re
import threading

import pytest

from toolkit.contracts import Audit, Completion, Done, Event, Failed, Incident, Request, SamplingParams, Usage, Violation
from toolkit.engine.breaker import Breaker
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.metrics import HELP, Metrics
from toolkit.errors import UsageError

_SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\n"])*",?)+)\})? (\S+)')
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\[\\n"])*)"')


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """A reader of the text format 0.0.4, as far as counters and gauges go; every sample stands under its HELP and TYPE."""
    assert text == "" or text.endswith("\n")
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    name = kind = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
        elif line.startswith("# TYPE "):
            assert line.split(" ")[2] == name
            kind = line.split(" ")[3]
            assert kind == ("counter" if name.endswith("_total") else "gauge")
        else:
            match = _SAMPLE.fullmatch(line)
            assert match is not None and match[1] == name, line
            labels = frozenset((key, re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], value)) for key, value in _LABEL.findall(match[2] or ""))  # fmt: skip
            assert (name, labels) not in found
            found[name, labels] = float(match[3])
    return found


def completion(**more: object) -> Completion:
    return Completion(text="", token_ids=(1, 2), finish_reason="stop", **more)  # type: ignore[arg-type]


def test_events_are_counted_on_their_way_and_passed_on() -> None:
    metrics, heard = Metrics(Breaker()), list[Event]()
    incident = Incident(
        kind="speculation", found_by="parser", drafter='odd"\\\nname', position=1, offset=1, tokens=(1,), why=""
    )
    usage = Usage(
        input_tokens=5, output_tokens=7, passes=4, verify_passes=2, proposed=6, accepted=3, discarded=1, rechecked=9,
        proposed_by_position=(2, 2, 2), accepted_by_position=(2, 1, 0),
    )  # fmt: skip
    cut = Violation("", "max_tokens", "", "", "")
    tell = metrics.heard(heard.append, 2)
    events: list[Event] = [
        Done("r", 0, completion(valid=True, incidents=(incident,), audit=Audit(verdict="pass", method="seed"))),
        Done("r", 1, completion(valid=False, violations=(cut,), usage=usage)),
    ]
    for event in events:
        tell(event)
    metrics.heard(heard.append, 1)(Failed("s", UsageError("no")))
    assert heard[:2] == events and len(heard) == 3
    found = parsed(metrics.prometheus())
    assert (
        found[
            "toolkit_incidents_total", frozenset({("kind", "speculation"), ("found_by", "parser"), ("drafter", 'odd"\\\nname')})
        ]
        == 1
    )
    assert found["toolkit_requests_total", frozenset({("outcome", "done")})] == 1
    assert found["toolkit_requests_total", frozenset({("outcome", "failed")})] == 1
    assert found["toolkit_samples_total", frozenset({("verdict", "cut")})] == 1
    assert found["toolkit_drafts_accepted_total", frozenset({("position", "2")})] == 1
    assert found["toolkit_breaker_held", frozenset()] == 0
    assert metrics.value("toolkit_draft_tokens_total", outcome="rechecked") == 9
    assert metrics.value("toolkit_samples_total") == 2 and metrics.value("toolkit_audits_total", verdict="pass") == 1
    assert {name for name, _ in found} <= set(HELP)


def test_the_breaker_can_be_asked_for_as_every_counter_can() -> None:
    breaker = Breaker(0)
    metrics = Metrics(breaker)
    assert metrics.value("toolkit_breaker_held") == 0
    breaker.count(True)
    assert metrics.value("toolkit_breaker_held") == 1 and metrics.value("toolkit_breaker_trips_total") == 1


def test_a_large_count_is_written_to_its_last_digit() -> None:
    metrics = Metrics()
    metrics.add("toolkit_tokens_total", 12_345_678, direction="input")
    assert parsed(metrics.prometheus())["toolkit_tokens_total", frozenset({("direction", "input")})] == 12_345_678


def test_a_metric_that_there_is_not_is_refused_by_name() -> None:
    for use in (Metrics().value, Metrics().add):
        with pytest.raises(UsageError, match=r"toolkit_incident_total.*toolkit_incidents_total"):
            use("toolkit_incident_total")


def test_no_count_is_lost_between_threads() -> None:
    metrics = Metrics()
    threads = [threading.Thread(target=lambda: [metrics.add("toolkit_requests_total", outcome="done") for _ in range(2000)]) for _ in range(8)]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.value("toolkit_requests_total") == 16_000


def test_an_engine_counts_what_it_did(tiny: EmbeddedEngine) -> None:
    before = parsed(tiny.metrics.prometheus())
    tiny.complete("hello", max_tokens=5, ignore_eos=True)
    list(tiny.generate([Request(prompt="x", sampling=SamplingParams(max_tokens=3, ignore_eos=True, n=2, temperature=1.0))]))
    (failed,) = tiny.generate([Request(prompt="")])
    assert isinstance(failed, Failed)
    after = parsed(tiny.metrics.prometheus())

    def grown(name: str, **labels: str) -> float:
        key = name, frozenset(labels.items())
        return after.get(key, 0) - before.get(key, 0)

    assert grown("toolkit_requests_total", outcome="done") == 2 and grown("toolkit_requests_total", outcome="failed") == 1
    assert grown("toolkit_samples_total", verdict="unjudged") == 3
    assert grown("toolkit_tokens_total", direction="input") == 6
