"""The measurement over a scripted engine: figures, the gate before seconds, resuming."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.bench.bench_scripted import ScriptedEngine
from toolkit.bench import arms, extraction
from toolkit.contracts import Json, Request
from toolkit.errors import InputError, UsageError

RECORDS = 6


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "bfcl.jsonl"
    parameters = {"type": "dict", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    function = {"name": "f", "description": "d", "parameters": parameters}
    rows = [
        {"id": f"r{n}", "question": f"Number {n}", "function": function, "answers": [{"f": {"n": [n]}}]} for n in range(RECORDS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def script(request: Request) -> list[tuple[Json, float]]:
    """Even numbers: greedy is right. Odd: greedy is wrong and the right answer is the likelier one. r5: never right."""
    n = int(request.id[1:])
    if n == 5:
        return [({"n": -1}, -1.0), ({"n": -2}, -2.0)]
    return [({"n": n}, -1.0), ({"n": -1}, -3.0)] if n % 2 == 0 else [({"n": -1}, -3.0), ({"n": n}, -1.0)]


def measure(engine: ScriptedEngine, data: Path, **options: Any) -> tuple[dict[str, Any], str]:
    console = Console(file=io.StringIO(), width=200)
    found = extraction.run(engine, task="bfcl", data=data, console=console, out=data.parent / "out", **options)
    return found, console.file.getvalue()  # type: ignore[attr-defined]


def test_figures_of_every_setting_are_those_of_the_script(data: Path) -> None:
    found, text = measure(ScriptedEngine(script), data, settings=("beam4:0",), batch=4)
    greedy, beam = found["arms"]
    assert (greedy["exact"]["n"], beam["exact"]["n"], beam["top"]["n"]) == (3, 5, 5)
    assert greedy["f1"]["f1"] == pytest.approx(0.5)
    assert greedy["mean_sum_logprob"] == pytest.approx((-1 - 3 - 1 - 3 - 1 - 1) / 6)
    assert beam["mean_sum_logprob"] == -1.0
    assert found["pairs"]["beam 4, alpha 0"] == {
        "only_this_right": 2, "only_greedy_right": 0, "sign_test_p": 0.5, "logprob": {"higher": 2, "equal": 4, "lower": 0},
    }  # fmt: skip
    assert found["verdict"] == "PASS" and found["reasons"] == []
    assert found["ceiling"]["beam 4, alpha 0"] == {"passes": 1.5, "rows": 5.0}
    assert found["ratios"]["beam 4, alpha 0"] > 0
    assert "<!-- bench-bfcl -->" in text and "PASS" in text
    json.dumps(found)


def test_a_width_one_beam_that_differs_from_greedy_withholds_seconds(data: Path) -> None:
    found, text = measure(ScriptedEngine(script, odd_twin=True), data, settings=("beam4:0",))
    assert found["verdict"] == "HOLD" and "differs from constrained greedy on 6 records" in found["reasons"][0]
    assert found["ratios"] == {} and all("seconds" not in arm and "e2e_s" not in arm for arm in found["arms"])
    assert "withheld" in text and found["arms"][1]["exact"]["n"] == 5


def test_a_delivered_value_that_is_not_valid_withholds_seconds(data: Path) -> None:
    def lies(request: Request) -> list[tuple[Json, float]]:
        return [({"n": "text"}, -1.0)] if request.id == "r2" else script(request)

    found, _ = measure(ScriptedEngine(lies), data, settings=("beam4:0",))
    assert found["verdict"] == "HOLD"
    assert any("1 delivered values are not valid, first r2" in reason for reason in found["reasons"])


def test_a_cut_off_answer_counts_as_not_delivered_and_holds_nothing(data: Path) -> None:
    def cut(request: Request) -> list[tuple[Json, float]]:
        return [('\0{"n":11', -9.0)] if request.id == "r2" else script(request)

    found, _ = measure(ScriptedEngine(cut), data, settings=("beam4:0",))
    assert found["verdict"] == "PASS"
    assert [arm["not_delivered"] for arm in found["arms"]] == [1, 1]
    assert found["arms"][0]["exact"]["n"] == 2


def test_an_interrupted_measurement_goes_on_where_it_stopped(data: Path) -> None:
    whole, _ = measure(ScriptedEngine(script), data, settings=("beam4:0",), batch=2)
    path = Path(whole["rows_file"])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:7]) + lines[7][:20])  # the key, one chunk under three settings, a torn line
    engine = ScriptedEngine(script)
    again, _ = measure(engine, data, settings=("beam4:0",), batch=2, resume=True)
    assert {request.id for request in engine.asked} == {"r0", "r2", "r3", "r4", "r5"}  # r0 warms up
    assert [arm["exact"] for arm in again["arms"]] == [arm["exact"] for arm in whole["arms"]]
    done = ScriptedEngine(script)
    measure(done, data, settings=("beam4:0",), batch=2, resume=True)
    assert done.asked == []


def test_rows_of_a_broken_file_are_refused_by_line(data: Path) -> None:
    whole, _ = measure(ScriptedEngine(script), data, settings=("beam4:0",))
    path = Path(whole["rows_file"])
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0] + b'{"id": 1}\n')
    with pytest.raises(InputError, match=r":2 is not a row"):
        measure(ScriptedEngine(script), data, settings=("beam4:0",), resume=True)


def test_rows_of_another_measurement_are_not_taken_over(data: Path) -> None:
    whole, _ = measure(ScriptedEngine(script), data, settings=("beam4:0",))
    path = Path(whole["rows_file"])
    path.write_bytes(b"{}\n" + b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    with pytest.raises(UsageError, match="another measurement"):
        measure(ScriptedEngine(script), data, settings=("beam4:0",), resume=True)


def test_settings_rotate_so_that_none_is_always_first(data: Path) -> None:
    engine = ScriptedEngine(script)
    measure(engine, data, settings=("beam4:0",), batch=2)
    firsts = [engine.asked[at].beam.width if engine.asked[at].beam else 0 for at in (2, 8, 14)]  # type: ignore[union-attr]
    assert sorted(firsts) == [0, 1, 4]


def test_settings_are_parsed_by_name_and_others_refused() -> None:
    assert arms.parse(["beam4:0.7", "greedy", "beam4:0.7"]) == (arms.GREEDY, arms.Setting("beam 4, alpha 0.7", 4, 0.7))
    for name in ("beam", "beam4", "beam0:1", "beam999:1", "beam4:-1", "beam4:99", "sampling"):
        with pytest.raises(UsageError):
            arms.parse([name])


def test_an_unknown_task_and_a_task_without_its_data_are_refused(data: Path) -> None:
    with pytest.raises(UsageError, match="known are bfcl, snips"):
        extraction.run(ScriptedEngine(script), task="squad")
    with pytest.raises(UsageError, match="--data"):
        extraction.run(ScriptedEngine(script), task="snips")
    with pytest.raises(UsageError, match="batch = 0"):
        extraction.run(ScriptedEngine(script), task="bfcl", data=data, batch=0)
