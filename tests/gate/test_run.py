"""The gate as a whole, on the tiny model: what passes, what is held, what says nothing - and that the tests in it can tell."""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from toolkit.contracts import Delta, Done, Event, PassTrace, Request, Timing, Usage
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.errors import EngineError, UnsupportedError, UsageError
from toolkit.gate import identity as identities
from toolkit.gate import run as running
from toolkit.gate import sampled
from toolkit.gate.arm import Arm, Memory, SilentError
from toolkit.gate.identity import differences, identity, key, sources
from toolkit.gate.page import page
from toolkit.gate.passes import found, keep
from toolkit.gate.plain import Plain
from toolkit.gate.report import Findings, Report
from toolkit.gate.run import run_gate

DRAFT = {"tokens": 4}


@pytest.fixture(scope="module")
def plain() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine("tiny") as engine:
        yield engine


@pytest.fixture(scope="module")
def memory() -> Memory:
    """What the baseline said, for all tests of this file."""
    return {}


@pytest.fixture
def drafted() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine("tiny", drafter="ngram", draft=DRAFT) as engine:
        yield engine


class Changed:
    """An engine whose every event goes through `change`."""

    def __init__(self, engine: EmbeddedEngine, change: Any) -> None:
        self.engine, self.change = engine, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def generate(self, requests: Any) -> Iterator[Event]:
        for event in self.engine.generate(requests):
            yield from self.change(event)


def test_the_intact_engine_passes_and_everything_that_was_looked_at_is_told(
    plain: EmbeddedEngine, drafted: EmbeddedEngine, memory: Memory
) -> None:
    heard: list[str] = []
    report = run_gate(plain, drafted, memory=memory, tell=heard.append)
    assert (report.verdict, report.reasons) == ("PASS", ())
    assert heard == ["canaries", "greedy texts", "ends", "sampled texts", "books"]
    assert {row["result"] for row in report.canaries} == {"pass", "weak"} and len(report.canaries) >= 25
    assert all(row["differ_count"] == 0 and row["texts"] for row in report.equivalence["greedy"]["settings"])
    settings = report.equivalence["sampled"]["settings"]
    assert len(settings) == 3 and all(row["control"]["differs"] and row["power"]["detects_at_0.5"] for row in settings)
    assert report.equivalence["sampled"]["seeded"]["differ"] == 0
    assert all(row["accepted"] for row in report.accounting["by_part"].values())
    json.dumps(report.to_json(), allow_nan=False)
    text = page(report)
    assert text.count("<svg") == 4 and "<script" not in text and "http" not in text.replace("http-equiv", "")
    assert text.count('class="differs"') == 2 and "{" not in text.partition("<h2>Identity")[2].partition("<h2>")[0]


def test_a_pair_with_nothing_under_test_has_shown_nothing(plain: EmbeddedEngine, memory: Memory) -> None:
    report = run_gate(plain, plain, memory=memory)
    assert (
        report.verdict == "INCONCLUSIVE" and report.reasons[0].startswith("nothing is under test") and len(report.reasons) == 1
    )


HOSTILE: dict[str, Any] = {
    "raises": lambda event: 1 / 0,
    "another's": lambda event: [replace(event, request_id="another's")],
    "no event": lambda event: [7],
    "another sample": lambda event: [replace(event, index=99)],
    "twice": lambda event: [event, event],
    "no times": lambda event: _with(event, timing=Timing(ttft_s=math.nan, e2e_s=-1.0)),
    "counters": lambda event: _with(event, usage=Usage(output_tokens=-3, steps=10**30, accepted=-1, proposed=10**40)),
    "a trace that is none": lambda event: _with(event, trace=(PassTrace((1, 2), (5, 9), (7,), (1,)),)),
    "markup": lambda event: _with(event, text="</td><script>alert(1)</script>" * 10_000),
    "endless": lambda event: (Delta(event.request_id, 0, "") for _ in iter(int, 1)),
}


def _with(event: Event, **changes: Any) -> list[Event]:
    return [replace(event, result=replace(event.result, **changes)) if isinstance(event, Done) else event]  # type: ignore[type-var]


@pytest.mark.parametrize("how", list(HOSTILE))
def test_whatever_a_candidate_says_is_a_verdict_and_no_part_of_the_page(
    how: str, plain: EmbeddedEngine, drafted: EmbeddedEngine, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.gate.arm._EVENTS", 8)
    report = run_gate(plain, Changed(drafted, HOSTILE[how]), memory=memory, first="greedy texts")  # type: ignore[arg-type]
    assert report.verdict == "HOLD", report.reasons
    assert "<script" not in page(report) and len(page(report)) < 100_000


def test_a_token_that_is_changed_now_and_then_is_held_and_located(
    plain: EmbeddedEngine, drafted: EmbeddedEngine, memory: Memory
) -> None:
    seen = 0

    def change(event: Event) -> Iterator[Event]:
        nonlocal seen
        if isinstance(event, Done) and event.result.token_ids:
            seen += 1
            if seen % 9 == 0:
                ids = (*event.result.token_ids[:-1], 65)
                event = replace(event, result=replace(event.result, token_ids=ids))
        yield event

    report = run_gate(plain, Changed(drafted, change), memory=memory, first="greedy texts")  # type: ignore[arg-type]
    assert report.verdict == "HOLD" and any("nats apart" in why for why in report.reasons)
    assert report.latency == {} and "tokens a second" not in page(report)  # no speed without a PASS


def test_a_lost_event_is_held(plain: EmbeddedEngine, drafted: EmbeddedEngine, memory: Memory) -> None:
    seen = 0

    def lose(event: Event) -> Iterator[Event]:
        nonlocal seen
        seen += isinstance(event, Delta)
        if not isinstance(event, Delta) or seen % 50:
            yield event

    report = run_gate(plain, Changed(drafted, lose), memory=memory, first="greedy texts")  # type: ignore[arg-type]
    assert report.verdict == "HOLD" and any("the stream has" in why for why in report.reasons)


def test_a_drafter_that_does_nothing_proves_nothing(plain: EmbeddedEngine, drafted: EmbeddedEngine, memory: Memory) -> None:
    class Idle(Plain):
        parts = drafted.parts  # it still says that it speculates

    report = run_gate(plain, Idle(drafted), memory=memory)  # type: ignore[arg-type]
    assert report.verdict == "INCONCLUSIVE" and all("not proven active" in why for why in report.reasons)


def test_a_baseline_that_does_not_repeat_itself_says_nothing(plain: EmbeddedEngine, drafted: EmbeddedEngine) -> None:
    seen = 0

    def drift(event: Event) -> Iterator[Event]:
        nonlocal seen
        if isinstance(event, Done) and event.result.token_ids and event.result.seed is None:
            seen += 1
            event = replace(event, result=replace(event.result, token_ids=(seen % 256, *event.result.token_ids[1:])))
        yield event

    report = run_gate(Changed(plain, drift), drafted)  # type: ignore[arg-type]
    assert report.verdict == "INCONCLUSIVE" and any("does not repeat itself" in why for why in report.reasons)


def test_another_model_or_format_is_not_compared(plain: EmbeddedEngine) -> None:
    with EmbeddedEngine("tiny", format="float32") as other:
        report = run_gate(plain, other)
    if plain.format == "float32":
        pytest.skip("there is no other format: the native one was not compiled")
    assert report.verdict == "INCONCLUSIVE" and "differ in format" in report.reasons[0] and report.canaries == ()


def test_what_an_engine_refuses_by_name_is_not_checkable_and_not_passed(
    plain: EmbeddedEngine, drafted: EmbeddedEngine, memory: Memory
) -> None:
    class Refusing(Plain):
        def generate(self, requests: Any) -> Iterator[Event]:
            from toolkit.contracts import Failed

            for request in requests:
                if request.sampling.temperature > 0:
                    yield Failed(request.id, UnsupportedError("temperature is not supported"))
                else:
                    yield from drafted.generate([request])

    report = run_gate(plain, Refusing(drafted), memory=memory)  # type: ignore[arg-type]
    results = {row["name"]: row["result"] for row in report.canaries}
    assert results["seeds"] == results["filters_meet_greedy"] == "not checkable" and results["choices"] == "pass"
    assert sum("sampled" in why for why in report.not_checkable) >= 3 and report.verdict != "HOLD"


def test_a_silent_engine_is_inconclusive(plain: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = threading.Event()

    class Silent(Plain):
        def generate(self, requests: Any) -> Iterator[Event]:
            asleep.wait(20)
            yield from ()

    with pytest.raises(SilentError, match=r"said nothing for 0\.05 s"):
        Arm("candidate", Silent(plain), patience_s=0.05).ask("x", [Request(prompt="x")])  # type: ignore[arg-type]
    monkeypatch.setattr(running, "Arm", lambda *a, **k: Arm(*a, **{**k, "patience_s": 0.05}))
    report = run_gate(Silent(plain), plain)  # type: ignore[arg-type]
    asleep.set()
    assert report.verdict == "INCONCLUSIVE" and "said nothing" in report.reasons[0]


def test_a_control_that_is_not_refused_is_a_doubt(
    plain: EmbeddedEngine, drafted: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampled, "WARMER", 1.0)
    findings = Findings()
    setting = sampled.settings(plain, 0)[0]
    sampled._row(setting, Arm("baseline", plain), Arm("candidate", drafted), 96, 0, findings)
    assert findings.verdict == "INCONCLUSIVE" and "control" in findings.doubts[0]


def test_options_that_are_none_are_refused(plain: EmbeddedEngine) -> None:
    with pytest.raises(UsageError, match="tier"):
        run_gate(plain, plain, tier="long")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="reasons"):
        Report(verdict="HOLD", reasons=(), tier="quick", seed=0)


def test_a_fault_outweighs_a_doubt_and_nothing_outweighs_a_pair_that_cannot_be_compared() -> None:
    assert Findings().verdict == "PASS" and Findings(doubts=["d"]).verdict == "INCONCLUSIVE"
    both = Findings(doubts=["d"], holds=["h", "h"])
    assert both.verdict == "HOLD" and both.reasons == ("h", "d")
    assert Findings(blocks=["b"], holds=["h"]).verdict == "INCONCLUSIVE"


def test_a_plain_view_of_an_engine_is_the_plain_engine(plain: EmbeddedEngine, drafted: EmbeddedEngine) -> None:
    assert identity(Plain(drafted)) == identity(plain) != identity(drafted)  # type: ignore[arg-type]
    assert differences(identity(plain), identity(drafted)) == []
    assert differences({"model": "a", "dtype": ""}, {"model": "b", "dtype": "x"}) == [
        "baseline and candidate differ in model: 'a' and 'b'"
    ]


def test_an_engine_passes_against_itself_without_its_drafter_which_is_kept_at_work_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `bench speculation` asks: one engine for both arms, its draft left to measurement."""
    monkeypatch.setattr(sampled, "settings", lambda engine, seed, full=sampled.settings: full(engine, seed)[:1])
    with EmbeddedEngine("tiny", drafter="ngram") as engine:
        pace = engine._pace
        report = run_gate(Plain(engine), engine)  # type: ignore[arg-type]
        assert (report.verdict, report.reasons) == ("PASS", ())
        assert engine._pace is pace and engine.draft == {"tokens": None, "nodes": None}
        with engine.drafting(tokens=4, nodes=6):
            assert engine._pace is not None and engine._pace.fixed(9) == (6, 4)


def test_a_pass_is_of_the_code_that_it_was_given_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("a.py", "1"), ("b/native.so", "2"), ("__pycache__/a.pyc", "3")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    def now() -> str:
        sources.cache_clear()
        return sources(tmp_path)

    first = now()
    (tmp_path / "__pycache__/a.pyc").write_text("4")
    assert now() == first
    (tmp_path / "b/native.so").write_text("4")
    second = now()
    (tmp_path / "a.py").rename(tmp_path / "c.py")
    assert len({first, second, now()}) == 3
    before = key({}, {})
    monkeypatch.setattr("toolkit.gate.identity.sources", lambda: second)
    assert key({}, {}) != before


def test_a_head_is_what_is_in_its_folder_and_not_where_that_lies(tmp_path: Path) -> None:
    def told(where: Path) -> Any:
        return identities._marked({"tokens": 4, "mtp": {"head": str(where), "draw": True}, "model": "smollm2"})

    for name in ("one", "two"):
        (tmp_path / name / "head").mkdir(parents=True)
        (tmp_path / name / "head/head.safetensors").write_text("weights")
    first, second = told(tmp_path / "one/head"), told(tmp_path / "two/head")
    assert first == second and str(tmp_path) not in str(first)
    assert first["tokens"] == 4 and first["model"] == "smollm2" and first["mtp"]["draw"] is True
    (tmp_path / "one/head/head.safetensors").write_text("other weights")
    assert told(tmp_path / "one/head") != second


def test_a_pass_is_kept_for_its_pair_alone_and_a_damaged_one_is_none(
    plain: EmbeddedEngine, drafted: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path))
    name = key(identity(plain), identity(drafted))
    who = {"baseline": identity(plain), "candidate": identity(drafted), "hash": name}
    report = Report(verdict="PASS", reasons=(), tier="full", seed=0, identity=who)
    assert found(name) is None and keep(replace(report, verdict="HOLD", reasons=("x",))) is None
    file = keep(report)
    assert file is not None and found(name)["tier"] == "full"  # type: ignore[index]
    assert keep(replace(report, tier="quick")) == file and found(name)["tier"] == "full"  # type: ignore[index]
    assert found(key(identity(plain), identity(plain))) is None
    for damage in (
        "",
        "[]",
        '{"verdict":"PASS"}',
        file.read_text().replace(name, "0" * 64),
        file.read_text().replace("PASS", "HOLD"),
        file.read_text().replace('"tokens": 4', '"tokens": 5'),
        "[" * 100_000,
    ):
        file.write_text(damage)
        assert found(name) is None
    file.unlink()
    os.mkfifo(file)
    assert found(name) is None  # and nobody waits for a writer
    shutil.rmtree(file.parent)
    file.parent.write_text("a file where the folder should be")
    with pytest.raises(EngineError, match="cannot be kept"):
        keep(report)
