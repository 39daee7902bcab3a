"""Equality compares what it says, excuses only ties of float32, and holds where an arm shows nothing or was repaired."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from toolkit.bench import equality
from toolkit.bench.equality_kept import Kept
from toolkit.cli import main
from toolkit.contracts import Completion, Done, Event, Incident, Request
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.errors import UsageError

QUIET = Console(quiet=True)


class Meddling:
    """An engine whose speculated texts are changed on their way out by `change(result)`."""

    def __init__(self, engine: EmbeddedEngine, change: Any, shown: str = "") -> None:
        self.engine, self.change = engine, change
        self.tokenizer, self.capabilities, self.score = engine.tokenizer, engine.capabilities, engine.score
        self.format = shown or engine.format

    def generate(self, requests: Iterable[Request]) -> Iterator[Event]:
        requests = list(requests)
        for event in self.engine.generate(requests):
            if isinstance(event, Done) and requests[0].speculate:
                event = replace(event, result=self.change(event.result))
            yield event


@pytest.fixture(scope="module")
def tiny() -> Iterator[EmbeddedEngine]:
    draft = {"tokens": 3, "min_match": 1, "floor": 0.0}
    with EmbeddedEngine("tiny", drafter="ngram", draft=draft) as engine:
        yield engine


def run(engine: Any, **options: Any) -> dict[str, Any]:
    def opened(_: str) -> AbstractContextManager[Any]:
        return nullcontext(engine)

    return equality.run(["arm"], opened, **{"prompts": 5, "tokens": 10, "console": QUIET, "batches": (1, 4), **options})


def test_every_setting_is_compared_and_passes(tiny: EmbeddedEngine) -> None:
    found = run(tiny, grammars=("free", "schema", "regex"), tokens=30)
    assert (found["verdict"], found["reasons"]) == ("PASS", [])
    assert [(each["grammar"], each["batch"]) for each in found["settings"]] == [
        (grammar, batch) for grammar in ("free", "schema", "regex") for batch in (1, 4)
    ]
    for each in found["settings"]:
        assert (each["texts"], each["equal"], each["tie_count"], each["differ_count"]) == (5, 5, 0, 0)
        assert each["proposed"] > 0
    assert json.dumps(found)


def test_one_other_token_is_located_and_holds(tiny: EmbeddedEngine) -> None:
    def change(result: Completion) -> Completion:
        ids = list(result.token_ids)
        ids[4] = (ids[4] + 1) % 256
        return replace(result, token_ids=tuple(ids))

    found = run(Meddling(tiny, change), grammars=("free",), batches=(1,))
    (setting,) = found["settings"]
    assert found["verdict"] == "HOLD" and setting["differ_count"] == 5 and setting["equal"] == 0
    assert all(place["at"] == 4 and place["found"] == (place["expected"] + 1) % 256 for place in setting["differ"])
    assert "5 of 5 texts differ" in found["reasons"][0] and "at token 4" in found["reasons"][0]


def test_a_text_that_ends_early_differs_at_its_end(tiny: EmbeddedEngine) -> None:
    found = run(
        Meddling(tiny, lambda result: replace(result, token_ids=result.token_ids[:-1])), grammars=("free",), batches=(1,)
    )
    assert {(place["at"], place["found"]) for place in found["settings"][0]["differ"]} == {(9, None)}


@pytest.mark.parametrize(("shown", "nats", "ties"), [("float32", 5e-5, 5), ("float32", 2e-4, 0), ("int8 (kernels)", 5e-5, 0)])
def test_only_a_near_tie_of_float32_is_excused(
    tiny: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch, shown: str, nats: float, ties: int
) -> None:
    monkeypatch.setattr(equality, "gap", lambda *_: nats)
    odd = Meddling(tiny, lambda result: replace(result, token_ids=(0, *result.token_ids[1:])), shown)
    found = run(odd, grammars=("free",), batches=(1,))
    assert (found["settings"][0]["tie_count"], found["settings"][0]["differ_count"]) == (ties, 5 - ties)
    assert found["verdict"] == ("PASS" if ties else "HOLD")


def test_a_repaired_text_holds_though_it_is_equal(tiny: EmbeddedEngine) -> None:
    incident = Incident(
        kind="speculation", found_by="parser", drafter="ngram", position=1, offset=1, tokens=(1,), why="a brace too many"
    )  # fmt: skip
    found = run(Meddling(tiny, lambda result: replace(result, incidents=(incident,))), grammars=("schema",), batches=(1,))
    assert found["verdict"] == "HOLD" and found["settings"][0]["equal"] == 5
    assert "caught and repaired in 5 of 5" in found["reasons"][0]


def test_an_arm_that_proposes_nothing_or_was_switched_off_shows_nothing(tiny: EmbeddedEngine) -> None:
    def off(result: Completion) -> Completion:
        return replace(result, notes=("it was switched off",), usage=replace(result.usage, proposed=0))

    found = run(Meddling(tiny, off), grammars=("free",), batches=(1,))
    assert found["verdict"] == "HOLD"
    assert [why.partition(": ")[2] for why in found["reasons"]] == [
        "nothing was proposed: the arm shows nothing",
        "it was switched off",
    ]


def test_there_are_two_hundred_distinct_prompts_and_no_more() -> None:
    assert len(set(equality.varied(200))) == 200
    with pytest.raises(UsageError, match="prompts = 100000"):
        equality.varied(100000)


def test_an_unknown_grammar_is_refused(tiny: EmbeddedEngine) -> None:
    with pytest.raises(UsageError, match="poem"):
        run(tiny, grammars=("poem",))


def test_the_command_prints_its_result(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        ["bench", "equality", "--model", "tiny", "--arm", "ngram:tokens=3,min_match=1,floor=0", "--arm", "model:nodes=6,floor=0",
         "--prompts", "2", "--tokens", "30", "--batch", "2", "--json"]
    )  # fmt: skip
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (code, found["reasons"]) == (0, [])
    assert [(each["arm"], each["grammar"]) for each in found["settings"]] == [
        (arm, grammar)
        for arm in ("ngram:tokens=3,min_match=1,floor=0", "model:nodes=6,floor=0")
        for grammar in ("free", "schema")
    ]


def test_settings_are_kept_as_they_end_and_found_again_under_the_same_terms_alone(tiny: EmbeddedEngine, tmp_path: Path) -> None:
    def cut(result: Completion) -> Completion:
        raise KeyboardInterrupt

    file = tmp_path / "kept.jsonl"
    first = run(tiny, grammars=("free",), kept=Kept(file), mark=lambda _: "code 1")
    for line in file.read_text().splitlines():
        assert json.loads(line)["setting"]["texts"] == 5
    # the same again decodes nothing: every text of this engine would end the run
    again = run(Meddling(tiny, cut), grammars=("free",), kept=Kept(file), mark=lambda _: "code 1")
    assert again["settings"] == first["settings"] and again["verdict"] == "PASS"
    for options in ({"tokens": 9}, {"prompts": 4}, {"mark": lambda _: "code 2"}, {"grammars": ("regex",)}, {"batches": (2,)}):
        with pytest.raises(KeyboardInterrupt):
            run(Meddling(tiny, cut), **{"grammars": ("free",), "kept": Kept(file), "mark": lambda _: "code 1", **options})
    assert len(file.read_text().splitlines()) == 2


def test_a_setting_that_held_is_kept_with_its_differences(tiny: EmbeddedEngine, tmp_path: Path) -> None:
    odd = Meddling(tiny, lambda result: replace(result, token_ids=(0, *result.token_ids[1:])))
    first, again = (run(odd, grammars=("free",), batches=(1,), kept=Kept(tmp_path / "kept")) for _ in range(2))
    assert first["verdict"] == again["verdict"] == "HOLD" and first["reasons"] == again["reasons"]
    assert first["settings"] == again["settings"]


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "torn": lambda held: held[:-20],
    "no JSON": lambda held: b"\xff" + held,
    "a list": lambda held: b"[1, 2]\n",
    "counts that are text": lambda held: held.replace(b'"texts": 5', b'"texts": "5"'),
    "fewer fields": lambda held: held.replace(b'"equal"', b'"equals"'),
    "a negative count": lambda held: held.replace(b'"equal": 5', b'"equal": -5'),
    "very deep": lambda held: b"[" * 100_000 + b"\n",
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_line_is_passed_over_and_compared_again(harm: str, tiny: EmbeddedEngine, tmp_path: Path) -> None:
    file = tmp_path / "kept"
    first = run(tiny, grammars=("free",), batches=(1,), kept=Kept(file))
    whole = file.read_bytes()
    file.write_bytes(HARMS[harm](whole))
    again = run(tiny, grammars=("free",), batches=(1,), kept=Kept(file))
    assert again["settings"] == first["settings"]
    assert whole.splitlines()[0] in file.read_bytes().splitlines()  # written anew, on a line of its own
    assert run(tiny, grammars=("free",), batches=(1,), kept=Kept(file))["settings"] == first["settings"]


def test_what_is_no_file_of_settings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no file of settings"):
        Kept(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="is no file of settings"):
        Kept(tmp_path / "pipe")
