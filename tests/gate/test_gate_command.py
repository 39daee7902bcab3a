"""`toolkit gate`: exit codes, what is printed and kept, the page; and fifty seeds."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from toolkit.cli import main
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.errors import EngineError
from toolkit.gate.identity import identity, key
from toolkit.gate.page import page
from toolkit.gate.passes import found
from toolkit.gate.report import Report
from toolkit.gate.run import run_gate

TINY = ("gate", "--model", "tiny", "--kv-blocks", "512")
DRAFTED = ("--candidate", "embedded:ngram@tokens=4")
REASONS = {"PASS": (), "HOLD": ("canary choices: <b>broken</b>",), "INCONCLUSIVE": ("differ in model",)}


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What the gate is to say, run by run; the last one stays."""
    said: list[str] = ["PASS"]

    def run(baseline: Any, candidate: Any, *, seed: int, **_: Any) -> Report:
        verdict: Any = said[0] if len(said) == 1 else said.pop(0)
        who = {"baseline": identity(baseline), "candidate": identity(candidate)}
        return Report(
            verdict=verdict, reasons=REASONS[verdict], tier="quick", seed=seed, identity=who | {"hash": key(*who.values())},
            canaries=({"name": "choices", "result": "fail", "why": "<i>text of a model</i>", "reason": "r"},),
        )  # fmt: skip

    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("toolkit.gate.run.run_gate", run)
    return said


@pytest.mark.parametrize(("verdict", "code"), [("PASS", 0), ("HOLD", 1), ("INCONCLUSIVE", 3)])
def test_every_verdict_has_its_exit_code_and_only_a_pass_is_kept(
    capsys: pytest.CaptureFixture[str], verdicts: list[str], verdict: str, code: int
) -> None:
    verdicts[:] = [verdict]
    assert main((*TINY, *DRAFTED, "--json")) == code
    out, err = capsys.readouterr()
    told = json.loads(out.splitlines()[-1])
    assert told["verdict"] == verdict and verdict in err
    assert {"reasons", "identity", "canaries", "equivalence", "accounting", "faults"} <= told.keys()
    assert (found(told["identity"]["hash"]) is not None) == (verdict == "PASS")


def test_of_several_seeds_the_worst_is_told_and_all_are_counted(
    capsys: pytest.CaptureFixture[str], verdicts: list[str]
) -> None:
    verdicts[:] = ["PASS", "HOLD", "INCONCLUSIVE", "PASS"]
    assert main((*TINY, *DRAFTED, "--seeds", "5", "--seed", "7", "--json")) == 1
    captured = capsys.readouterr()
    told = json.loads(captured.out.splitlines()[-1])
    seeds = told["seeds"]
    assert (seeds["run"], seeds["passed"]) == (5, 3) and told["seed"] == 8 and told["verdict"] == "HOLD"
    assert [(each["seed"], each["verdict"]) for each in seeds["others"]] == [(8, "HOLD"), (9, "INCONCLUSIVE")]
    assert "3 of 5 seeds PASS" in (err := captured.err) and "- seed 9: INCONCLUSIVE: differ in model" in err


def test_the_page_is_one_file_that_loads_nothing_and_escapes_what_models_wrote(
    verdicts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdicts[:] = ["HOLD"]
    assert main((*TINY, *DRAFTED, "--html", str(tmp_path / "g.html"))) == 1
    text = (tmp_path / "g.html").read_text()
    assert "&lt;b&gt;broken" in text and "<b>broken" not in text and "<i>text" not in text
    assert "<script" not in text and "src=" not in text and "href=" not in text
    named = {"baseline": {"model": "<img src=x>"}, "candidate": {"model": '"><svg onload=1>'}, "hash": ""}
    text = page(Report(verdict="PASS", reasons=(), tier="<i>", seed=0, identity=named))
    assert "<img" not in text and "<svg" not in text and "<i>" not in text
    assert "drafter none -> ngram" in capsys.readouterr().err
    assert main((*TINY, *DRAFTED, "--html", str(tmp_path / "no" / "g.html"))) == 2  # before anything has run
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--candidate is missing"),
        (("--candidate", "psychic"), "'psychic' is unknown"),
        (("--candidate", "embedded:psychic"), "psychic"),
        (("--candidate", "embedded@tokens"), "not NAME=VALUE"),
        (("--teeth", *DRAFTED), "--candidate says nothing with --teeth"),
        ((*DRAFTED, "--quick", "--full"), "exclude each other"),
        ((*DRAFTED, "--unverified"), "No such option"),
    ],
)
def test_a_wrong_call_is_exit_code_2(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str) -> None:
    assert main((*TINY, *arguments)) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err


def test_a_server_that_is_not_there_could_not_be_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main((*TINY, "--candidate", "http://127.0.0.1:9/v1")) == EngineError.exit_code == 3


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium: the page is not looked at")
def test_a_browser_shows_the_page_with_its_plots(tmp_path: Path) -> None:
    greedy = {
        "name": "free",
        "texts": 4,
        "tokens": 9,
        "equal": 3,
        "tie_count": 0,
        "differ_count": 1,
        "differ": [{"why": "w", "at": 3}],
        "ties": [],
    }
    books = dict.fromkeys(
        (
            "output_tokens",
            "steps",
            "verify_passes",
            "proposed",
            "accepted",
            "appended",
            "trimmed",
            "discarded",
            "tokens_per_pass",
        ),
        1,
    )
    books |= {"proposed_by_position": [4, 2], "accepted_by_position": [3, 1]}
    report = Report(
        verdict="HOLD", reasons=("r",), tier="quick", seed=0, equivalence={"greedy": {"tolerance_nats": 0.0, "settings": [greedy]}},
        accounting={"baseline": books, "candidate": books, "flags": []},
    )  # fmt: skip
    (tmp_path / "g.html").write_text(page(report))
    found = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/p", "--dump-dom", f"file://{tmp_path}/g.html"],
        capture_output=True, timeout=120,
    )  # fmt: skip
    assert found.stdout.count(b"<svg") == 2 and b"HOLD" in found.stdout


@pytest.mark.slow
def test_the_intact_engine_passes_with_one_seed_after_the_other() -> None:
    """`toolkit gate --model tiny --candidate embedded:ngram@tokens=4 --seeds 50` runs all fifty."""
    with EmbeddedEngine("tiny") as plain, EmbeddedEngine("tiny", drafter="ngram", draft={"tokens": 4}) as drafted:
        for seed in (11, 47):
            report = run_gate(plain, drafted, seed=seed)
            assert (report.verdict, report.reasons) == ("PASS", ()), seed
