"""The flow of a job: concurrency by trying, budgets, deadlines, the time left, a graceful stop."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.scripted_job_engine import ScriptedEngine
from toolkit.errors import EngineError, UnsupportedError, UsageError
from toolkit.jobs import attempt as attempt_module
from toolkit.jobs import flow as flow_module
from toolkit.jobs.budget import RetryBudget
from toolkit.jobs.concurrency import MOST, Adaptive, Fixed
from toolkit.jobs.deadline import TimedOutError, within
from toolkit.jobs.eta import Eta
from toolkit.jobs.flow_options import Flow
from toolkit.jobs.run import Summary, prepare, run_job
from toolkit.jobs.spec import make_spec

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def length(text: str) -> dict[str, int]:
    return {"n": len(text)}


def job_of(folder: Path, texts: list[str], **options: Any) -> Any:
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return prepare(folder / "in.jsonl", make_spec({"schema": SCHEMA, **options}))


def run(folder: Path, texts: list[str], engine: ScriptedEngine, **how: Any) -> Summary:
    return run_job(job_of(folder, texts), folder / "out", engine, **how)


def lines(folder: Path, name: str = "out") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


# --- concurrency ------------------------------------------------------------------------------------------------------


def simulated(rate: Callable[[int], float], records: int, concurrency: Any, clock: list[float]) -> list[int]:
    """A server that finishes `rate(n)` records a second when n run; the limits over time."""
    seen = []
    for _ in range(records):
        clock[0] += 1 / rate(concurrency.now)
        concurrency.done(troubled=False)
        seen.append(concurrency.now)
    return seen


@pytest.mark.parametrize("best", [2, 16, 60])
def test_it_climbs_to_where_more_together_is_no_faster(best: int) -> None:
    clock = [0.0]
    adaptive = Adaptive(clock=lambda: clock[0])
    seen = simulated(lambda n: min(n, best), 6000, adaptive, clock)
    late = seen[3000:]
    assert best * 0.75 <= sum(late) / len(late) <= max(best * 2, best + 3)
    assert max(seen) <= MOST


def test_where_every_more_is_faster_it_goes_to_the_most() -> None:
    clock = [0.0]
    adaptive = Adaptive(most=32, clock=lambda: clock[0])
    assert simulated(lambda n: n, 2000, adaptive, clock)[-1] in range(24, 33)


def test_a_server_that_chokes_on_too_many_is_given_fewer() -> None:
    clock = [0.0]
    adaptive = Adaptive(first=64, clock=lambda: clock[0])
    seen = simulated(lambda n: n if n <= 16 else 16 * 16 / n, 20_000, adaptive, clock)
    assert sum(seen[-2000:]) / 2000 < 40


def test_trouble_halves_it_at_once_and_it_never_goes_below_one() -> None:
    adaptive = Adaptive(first=16, clock=lambda: 0.0)
    adaptive.done(troubled=True)
    assert adaptive.now == 8
    for _ in range(100):
        adaptive.done(troubled=True)
    assert adaptive.now == 1


def test_a_fixed_number_stays() -> None:
    fixed = Fixed(3)
    fixed.done(troubled=True)
    assert fixed.now == 3


def test_a_job_runs_the_same_with_a_number_found_by_trying(tmp_path: Path) -> None:
    texts = ["x" * (1 + index % 7) for index in range(200)]
    assert run(tmp_path, texts, ScriptedEngine(length), in_flight="auto").valid == 200
    assert [line["value"] for line in lines(tmp_path)] == [length(text) for text in texts]


# --- what is handed out ------------------------------------------------------------------------------------------------


def test_large_records_are_not_handed_out_beyond_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_module, "MAX_BYTES", 1000)
    engine = ScriptedEngine(length)
    texts = ["slow" + "x" * 600 for _ in range(8)]
    assert run(tmp_path, texts, engine, in_flight=8).valid == 8
    assert engine.most_running <= 2


def test_after_a_stop_nothing_is_begun_what_runs_is_finished_and_a_resume_does_the_rest(tmp_path: Path) -> None:
    stop = threading.Event()
    texts = ["slow" + "x" * index for index in range(30)]
    engine = ScriptedEngine(length)

    def stop_after_three(done: int, total: int | None, failed: int) -> None:
        if done == 3:
            stop.set()

    summary = run(tmp_path, texts, engine, in_flight=4, stop=stop, on_progress=stop_after_three)
    assert summary.stopped and 3 <= summary.done <= 8
    assert len(engine.prompts) == summary.done  # what was begun is what was written
    assert json.loads((tmp_path / "out.manifest.json").read_text())["state"] == "stopped"
    summary = run(tmp_path, texts, ScriptedEngine(length), resume=True)
    assert not summary.stopped and [line["index"] for line in lines(tmp_path)] == list(range(30))
    manifest = json.loads((tmp_path / "out.manifest.json").read_text())
    assert (manifest["state"], manifest["timing"]["runs"], manifest["counts"]["valid"]) == ("complete", 2, 30)


# --- second tries and deadlines ----------------------------------------------------------------------------------------


class Moody(ScriptedEngine):
    """Fails the first `times` tries of every text that begins with "moody"."""

    def __init__(self, times: int) -> None:
        super().__init__(self._answer)
        self.times = times
        self.tries: dict[str, int] = {}

    def _answer(self, text: str) -> dict[str, int]:
        if text.startswith("moody"):
            self.tries[text] = self.tries.get(text, 0) + 1
            if self.tries[text] <= self.times:
                raise EngineError("a bad moment")
        return length(text)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_module, "FIRST_PAUSE_S", 0.001)


def test_a_bad_moment_of_the_engine_is_tried_again_and_counted(tmp_path: Path) -> None:
    assert run(tmp_path, ["a", "moody"], Moody(2), retries=2).valid == 2
    assert [line["tries"] for line in lines(tmp_path)] == [1, 3]


def test_after_the_last_try_it_is_a_dead_letter(tmp_path: Path) -> None:
    summary = run(tmp_path, ["a", "moody"], Moody(9), retries=2)
    (line,) = lines(tmp_path, "out.errors.jsonl")
    assert (line["stage"], line["tries"], summary.failures) == ("decode", 3, {"decode": 1})


def test_the_budget_of_all_records_bounds_second_tries(tmp_path: Path) -> None:
    engine = Moody(99)
    run(tmp_path, [f"moody {index}" for index in range(50)], engine, retries=5, retry_share=0.1, in_flight=1)
    assert 50 + 10 <= sum(engine.tries.values()) <= 50 + 10 + 5


def test_a_budget_is_earned_and_spent() -> None:
    budget = RetryBudget(0.5)
    assert [budget.spend() for _ in range(11)] == [True] * 10 + [False]
    budget.earn()
    assert not budget.spend()
    budget.earn()
    assert budget.spend() and not budget.spend()
    assert not RetryBudget(0.0).spend()


def test_a_record_that_takes_too_long_fails_alone(tmp_path: Path) -> None:
    summary = run(tmp_path, ["a", "endless", "b"], ScriptedEngine(length), record_timeout_s=0.1, retries=0)
    (line,) = lines(tmp_path, "out.errors.jsonl")
    assert (summary.valid, line["index"], line["stage"]) == (2, 1, "decode") and "more than 0.1 s" in line["reason"]


def test_a_call_without_a_limit_runs_in_the_callers_thread_and_its_errors_come_through() -> None:
    assert within(None, threading.get_ident, lambda: None) == threading.get_ident()
    assert within(5, threading.get_ident, lambda: None) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 // 0, lambda: None)  # type: ignore[arg-type, return-value]


def test_a_call_that_does_not_let_go_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.jobs.deadline.GRACE_S", 0.01)
    gate = threading.Event()
    with pytest.raises(TimedOutError, match="did not let go"):
        within(0.01, gate.wait, lambda: None)
    gate.set()


def test_a_result_that_comes_while_it_is_cancelled_counts() -> None:
    gate = threading.Event()
    assert within(0.01, lambda: gate.wait() and "late", gate.set) == "late"


# --- dead letters ------------------------------------------------------------------------------------------------------


def test_dead_letters_are_tried_again_by_one_call_and_take_their_place(tmp_path: Path) -> None:
    texts = ["a", "moody 1", "bb", "moody 2", "ccc"]

    class Half(Moody):
        def _answer(self, text: str) -> dict[str, int]:
            if text == "moody 2":
                raise EngineError("still sick")
            return length(text)

    assert run(tmp_path, texts, Moody(99), retries=0).failed == 2
    told: list[int] = []
    summary = run(
        tmp_path, texts, Half(0), retries=0, retry_failed=True, on_progress=lambda done, total, failed: told.append(done)
    )
    assert told == [3, 4, 5]  # what is tried again is not done yet
    assert (summary.retried, summary.valid, summary.failures) == (2, 4, {"decode": 1})
    assert [line["index"] for line in lines(tmp_path)] == [0, 1, 2, 4]
    assert [(line["index"], line["reason"]) for line in lines(tmp_path, "out.errors.jsonl")] == [(3, "still sick")]
    assert run(tmp_path, texts, Moody(0), retry_failed=True).failed == 0
    assert [line["value"] for line in lines(tmp_path)] == [length(text) for text in texts]
    assert not (tmp_path / "out.retry.jsonl").exists()


def test_changed_terms_are_refused_unless_they_are_accepted_and_then_noted(tmp_path: Path) -> None:
    run(tmp_path, ["a", "moody"], Moody(99), retries=0)
    job = job_of(tmp_path, ["a", "moody"], system="Think twice. {schema}")
    with pytest.raises(UsageError, match=r"job\.system: .*--accept-changes"):
        run_job(job, tmp_path / "out", Moody(0), resume=True)
    summary = run_job(job, tmp_path / "out", Moody(0), retry_failed=True, accept_changes=True)
    assert summary.failed == 0
    (change,) = json.loads((tmp_path / "out.job.json").read_text())["changes"]
    assert (change["from_index"], change["what"][0][0]) == (2, "job.system")
    assert run_job(job, tmp_path / "out", Moody(0), resume=True).done == 2  # they are the terms now


def test_another_input_is_never_accepted(tmp_path: Path) -> None:
    run(tmp_path, ["a"], ScriptedEngine(length))
    with pytest.raises(UsageError, match=r"input\.sha256.*name another output"):
        run(tmp_path, ["b"], ScriptedEngine(length), accept_changes=True)


def test_where_others_decode_what_only_this_process_does_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="other machines"):
        run(tmp_path, ["a"], ScriptedEngine(length), outcomes=lambda *_: iter(()), record_timeout_s=1)


@pytest.mark.parametrize(
    "wrong", [{"in_flight": 0}, {"in_flight": "many"}, {"record_timeout_s": 0}, {"retries": -1}, {"retry_share": 2}]
)
def test_flow_options_have_bounds(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Flow(**wrong)


# --- the time left -----------------------------------------------------------------------------------------------------


def left_at(shares: list[float], seconds: Callable[[int], float], total: int) -> list[float]:
    """Estimated over true time left, when so much of a job is done whose record `i` takes `seconds(i)`."""
    now, eta, told = 100.0, Eta(0, 100.0), []
    ends = [0.0]
    for index in range(total):
        ends.append(ends[-1] + seconds(index))
    marks = [round(share * total) for share in shares]
    for done in range(1, total + 1):
        now = 100.0 + ends[done]
        eta.note(done, now)
        if done in marks:
            left = eta.left(done, total, now)
            assert left is not None
            told.append(left / (ends[-1] - ends[done]))
    return told


def test_the_time_left_converges_for_records_of_all_lengths() -> None:
    chance = random.Random(1)
    costs = [chance.lognormvariate(0, 1) for _ in range(5000)]
    early, middle, late = (abs(each - 1) for each in left_at([0.1, 0.5, 0.9], costs.__getitem__, 5000))
    assert early < 0.4 and middle < 0.2 and late < 0.15


def test_a_change_of_speed_is_forgotten() -> None:
    slow_start, half, late = left_at([0.25, 0.5, 0.9], lambda i: 5.0 if i < 1000 else 1.0, 4000)
    assert slow_start == pytest.approx(5.0, rel=0.1) and abs(late - 1) < 0.05
    assert abs(half - 1) < abs(slow_start - 1)


def test_nothing_is_told_before_anything_is_known_and_memory_is_bounded() -> None:
    eta = Eta(10, 0.0)
    assert eta.left(10, 100, 5.0) is None
    for step in range(10_000):
        eta.note(10 + step, float(step))
    assert len(eta._times) <= 129
    assert eta.left(5010, 10_010, 5000.0) == pytest.approx(5000, rel=0.1)
