"""`toolkit generate` with something that its text has to be: verdict, attempts and incidents in --json, exit code 1 where it is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolkit.cli import main

TINY = ("--model", "tiny", "--kv-blocks", "256", "--raw", "--max-tokens", "20")
DRAFT = ("--drafter", "ngram", "--tokens", "2", "--draft-option", "min_match=1")
AHEAD = ("--drafter", "model", "--tokens", "3", "--draft-option", "floor=0")
TOOLS = [{"name": "go", "parameters": {"properties": {"to": {"enum": ["x", "y"]}}, "required": ["to"]}}]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.json").write_text(json.dumps({"enum": ["a", "b"]}))
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    (tmp_path / "none.json").write_text("{")
    (tmp_path / "odd.json").write_text(json.dumps([{"name": "go", "parameters": {"type": "nothing"}}]))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    return main(("generate", "ab ab ab ab", *arguments)), *capsys.readouterr()


def last(text: str) -> Any:
    return json.loads(text.splitlines()[-1])


def test_an_unjudged_text_says_so_and_a_watched_one_has_its_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *TINY, "--json")
    assert code == 0 and last(out)["valid"] is None
    for watch in (("--watch-json",), ("--watch-schema", "s.json"), ("--watch-code", "json", "--max-tokens", "20")):
        code, out, err = run(capsys, *TINY, *DRAFT, *watch, "--json")
        found = last(out)
        assert code == 1 and found["valid"] is False and found["violations"] and "NOT VALID" in err
        assert {"value", "incidents", "attempts", "audit", "accounting"} <= found.keys() and found["attempts"] == []


def test_a_grammar_s_verdict_is_the_engine_s_and_a_cut_off_text_is_cut_off(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *TINY, "--schema", "s.json", "--json")
    assert code == 0 and last(out)["valid"] is True and last(out)["value"] in ("a", "b")
    code, out, err = run(capsys, *TINY, "--schema", "s.json", "--max-tokens", "1", "--json")
    assert code == 1 and [each["keyword"] for each in last(out)["violations"]] == ["max_tokens"] and "cut off" in err


def test_policies_repair_a_text_and_every_attempt_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    policies = ("--policy", "plain", "--policy", "constrained")
    code, out, err = run(capsys, *TINY, *DRAFT, "--watch-schema", "s.json", *policies, "--json")
    found = last(out)
    assert code == 0 and found["valid"] and [(each["policy"], each["valid"]) for each in found["attempts"]] == [
        ("", False), ("plain", False), ("constrained", True),
    ]  # fmt: skip
    assert "attempt as asked: not valid" in err and "attempt constrained: valid" in err
    code, out, _ = run(capsys, *TINY, "--watch-schema", "s.json", *policies)
    assert code == 0 and json.loads(out) in ("a", "b")


def test_tools_are_watched_in_a_format_and_an_audit_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    tools = (
        "--watch-tools",
        "tools.json",
        "--tool-format",
        "json",
        "--tool-choice",
        "go",
        "--parallel",
        "1",
        "--max-tokens",
        "60",
    )
    code, out, _ = run(capsys, *TINY, *tools, "--policy", "constrained", "--json")
    assert code == 0 and [each["name"] for each in last(out)["value"]["calls"]] == ["go"]
    code, out, err = run(capsys, *TINY, *AHEAD, "--ignore-eos", "--audit", "1", "--json")
    assert code == 0 and last(out)["audit"]["verdict"] == "pass" and "audit: pass (argmax)" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--watch-json", "--watch-code", "json"), "--watch-json and --watch-code exclude each other"),
        (("--tool-format", "hermes"), "--tool-format goes with --watch-tools"),
        (("--parallel", "2"), "--parallel goes with --watch-tools"),
        (("--watch-tools", "none.json"), "tools none.json"),
        (("--watch-tools", "nowhere.json"), "nowhere.json cannot be read"),
        (("--watch-tools", "tools.json", "--tool-format", "nobody's"), "nobody's"),
        (("--watch-tools", "tools.json", "--tool-choice", "stop"), "stop"),
        (("--watch-schema", "nothing"), "neither a file nor a name"),
        (("--watch-schema", ""), "empty"),
        (("--watch-code", "cobol"), "cobol"),
        (("--policy", "plain"), "without a watch or a grammar"),
        (("--watch-json", "--policy", "plain", "--n", "2"), "one sample"),
        (("--watch-json", "--policy", "plain", "--policy", "plain"), "each at most once"),
        (("--watch-json", "--policy", "plain", "--events"), "no events"),
        (("--policy", "again"), "again"),
        (("--audit", "2"), "2"),
        (("--audit", "0.5"), "--audit says nothing without a drafter"),
        (("--audit", "0.5", "--drafter", "none"), "--audit says nothing without a drafter"),
        (("--watch-tools", "odd.json"), "error: tools odd.json: parameters of tool go"),
        (("--fallback", "http://h:1"), "--engine URL"),
    ],
)
def test_a_watch_that_cannot_be_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = run(capsys, *TINY, *arguments)
    assert (code, out) == (2, "") and said in err and "Traceback" not in err
