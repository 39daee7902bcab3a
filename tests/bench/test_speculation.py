"""Speculation bench: speed only after equal tokens and balanced books, figures as counted by hand, and its sets of prompts."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from toolkit.bench import promptsets, speculation, speculation_batches, speculation_report
from toolkit.bench.llamacpp_peer import Run
from toolkit.bench.speculation_rows import Sample, Waits, arms, complaints
from toolkit.cli import main
from toolkit.contracts import Completion, Delta, Done, Event, Request, Usage
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.errors import InputError, UsageError
from toolkit.gate.identity import identity, key
from toolkit.gate.report import Report
from toolkit.train.prompts import held_out

PROMPTS = {"chat": ["How are you?", "And you?"], "copying": ["abcabcabc"]}


class StandIn:
    """In place of llama.cpp: exactly 100 tokens a second."""

    def greedy(self, prompt: Sequence[int], count: int) -> Run:
        return Run(tuple(range(count)), 0.5, 0.5 + (count - 1) / 100.0)


class Other:
    """An engine whose results are changed where it speculates."""

    def __init__(self, engine: EmbeddedEngine, **changes: Any) -> None:
        self.engine, self.changes = engine, changes
        self.tokenizer, self.capabilities, self.format = engine.tokenizer, engine.capabilities, engine.format
        self.seen: list[Request] = []
        self.apart = 0.0

    def generate(self, requests: Iterable[Request]) -> Iterator[Event]:
        requests = list(requests)
        self.seen += requests
        for event in self.engine.generate(requests):
            if isinstance(event, Done) and isinstance(event.result, Completion) and requests[0].speculate:
                event = replace(event, result=replace(event.result, **self.changes))
            yield event

    def score(self, prompt: Any, continuations: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[-1.0], [-1.0 - self.apart]]


@pytest.fixture(scope="module")
def ngram() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine("tiny", drafter="ngram", draft={"tokens": 3, "min_match": 1}, kv_blocks=256) as engine:
        yield engine


def measured(engine: Any, **options: Any) -> tuple[dict[str, Any], str]:
    console = Console(file=io.StringIO(), width=200)
    found = speculation.run({"ngram": engine}, PROMPTS, tokens=16, console=console, **options)
    json.dumps(found)
    return found, console.file.getvalue()  # type: ignore[attr-defined]


def test_equal_tokens_open_the_figures_of_every_kind_and_arm(ngram: EmbeddedEngine) -> None:
    found, text = measured(ngram, peer=StandIn(), rounds=2)
    assert found["verdict"] == "PASS" and found["prompts"] == {"chat": 2, "copying": 1}
    for kind, texts in (("chat", 4), ("copying", 2)):
        assert list(found["kinds"][kind]) == ["plain", "ngram", "llamacpp"]
        for name in ("plain", "ngram"):
            assert found["kinds"][kind][name]["identical"] == found["kinds"][kind][name]["compared"] == texts
        assert found["kinds"][kind]["llamacpp"]["decode_tok_s"] == pytest.approx(100.0)
        assert found["kinds"][kind]["llamacpp"]["compared"] == 0
    arm = found["arms"][1]
    assert {"name", "decode_tok_s", "ttft_s", "e2e_s", "tokens_per_pass", "acceptance_by_position"} <= set(arm)
    assert {"speculative_vs_llamacpp", "copy_vs_llamacpp", "speculative_vs_plain", "copy_vs_plain"} <= set(found["ratios"])
    assert found["ceiling"]["chat"] == {"ngram": found["kinds"]["chat"]["ngram"]["tokens_per_pass"]}
    assert arm["input_tokens"] > 5 and arm["requested_tokens"] == arm["output_tokens"] == 16 and 0 <= arm["repetition"] <= 1
    assert 0 <= arm["wait_s"]["median"] <= arm["wait_s"]["p95"]
    work = arm["per_token"]
    assert work["speculative"]["weight_bytes"] < work["plain"]["weight_bytes"] and work["plain"]["target_flops"] > 0
    machine = found["ceiling"]["machine"]
    assert machine["plain_tok_s"] == pytest.approx(machine["read_bytes_s"] / machine["weight_bytes"])
    assert machine["plain_reached"] == pytest.approx(found["arms"][0]["decode_tok_s"] / machine["plain_tok_s"])
    assert "<!-- bench-speculation-copying -->" in text and "speculative_vs_plain" in text
    assert text.startswith("ceiling: ") and "lengths, times and work of a token" in text


def test_every_arm_runs_once_before_anything_counts(ngram: EmbeddedEngine) -> None:
    other = Other(ngram)
    found, _ = measured(other)
    spoken = [request for request in other.seen if request.speculate]
    assert len(spoken) == 1 + 3 and found["arms"][1]["texts"] == 3 and spoken[0].prompt == spoken[1].prompt


def test_another_token_holds_every_speed_back(ngram: EmbeddedEngine) -> None:
    found, text = measured(Other(ngram, token_ids=(1, 2, 3)), peer=StandIn())
    assert found["verdict"] == "HOLD" and found["ratios"] == {}
    assert "ngram differs from plain decoding on 3 of 3 texts, first of kind chat" in found["reasons"][0]
    assert not any({"decode_tok_s", "ttft_s", "e2e_s", "wait_s", "vs_plain"} & each.keys() for each in found["arms"])
    assert "withheld" in text and "plain_reached" not in (found["ceiling"]["machine"] or {})


def test_a_float_engine_may_part_at_a_tie_only(ngram: EmbeddedEngine) -> None:
    other = Other(ngram, token_ids=(1, 2, 3))
    other.format = "float32"
    found, _ = measured(other)
    assert found["verdict"] == "PASS" and found["kinds"]["chat"]["ngram"]["identical"] == 0
    other.apart = 0.01
    assert measured(other)[0]["verdict"] == "HOLD"


def test_books_that_do_not_balance_hold_every_speed_back(ngram: EmbeddedEngine) -> None:
    found, _ = measured(Other(ngram, usage=Usage(output_tokens=16, steps=9)))
    assert found["verdict"] == "HOLD" and "the books of ngram do not balance on 3 of 3 texts" in found["reasons"][0]


def test_drawn_tokens_are_not_compared(ngram: EmbeddedEngine) -> None:
    other = Other(ngram)
    found, text = measured(other, temperature=1.0)
    assert found["verdict"] == "PASS" and found["kinds"]["chat"]["ngram"]["compared"] == 0
    assert {request.sampling.temperature for request in other.seen} == {1.0} and "temperature 1" in text


def test_no_arm_and_an_arm_with_a_taken_name_are_refused(ngram: EmbeddedEngine) -> None:
    for engines in ({}, {"plain": ngram}, {"llamacpp": ngram}):
        with pytest.raises(UsageError, match="arms"):
            speculation.run(engines, PROMPTS)


def sample(tok_s: float, **more: Any) -> Sample:
    usage = Usage(output_tokens=11, steps=11)
    return Sample(**{"tokens": 11, "decode_s": 10 / tok_s, "ttft_s": 1.0, "e2e_s": 2.0, "usage": usage, "same": True, **more})


def test_ratios_are_of_the_fastest_arm_of_a_kind_prompt_by_prompt() -> None:
    chat = [
        {"plain": sample(p), "a": sample(p * a), "b": sample(40), "llamacpp": sample(20)}
        for p, a in ((10, 2), (20, 3), (40, 4))
    ]
    rows = {"chat": chat, "copying": [{"plain": sample(10), "a": sample(10), "b": sample(50), "llamacpp": sample(25)}]}
    found = speculation_report.summarise(rows, ["a", "b"], tokens=11, temperature=0.0, rounds=1, tie_nats=0.0)
    ratios = found["ratios"]
    assert (ratios["speculative_arm"], ratios["speculative_vs_plain"]) == ("a", pytest.approx(3.0))
    assert ratios["speculative_vs_plain_quartiles"] == pytest.approx((2.5, 3.5))
    assert ratios["speculative_vs_llamacpp"] == pytest.approx(3.0)  # 20, 60 and 160 tokens a second over 20
    assert (ratios["copy_arm"], ratios["copy_vs_plain"], ratios["copy_vs_llamacpp"]) == (
        "b",
        pytest.approx(5.0),
        pytest.approx(2.0),
    )
    assert found["kinds"]["chat"]["b"]["vs_plain"] == pytest.approx([1.5, 2.0, 3.0])


def test_a_text_of_one_token_has_no_speed() -> None:
    assert sample(1.0, tokens=1).tok_s == 0.0
    rows = {"chat": [{"plain": sample(1.0, tokens=1), "a": sample(1.0, tokens=1)}]}
    found = speculation_report.summarise(rows, ["a"], tokens=11, temperature=0.0, rounds=1, tie_nats=0.0)
    assert found["verdict"] == "PASS" and found["ratios"] == {}


def test_complaints_are_by_arm_and_the_arms_in_their_order() -> None:
    row = {"b": sample(1.0, same=False, gap=0.2), "llamacpp": sample(1.0, same=None), "plain": sample(1.0), "a": sample(1.0)}
    assert arms([row], ["b", "a", "gone"]) == ["plain", "b", "a", "llamacpp"]
    assert len(complaints({"chat": [row]}, 0.1)) == 1 and complaints({"chat": [row]}, 0.3) == []
    assert len(complaints({"chat": [row]}, 0.0)) == 1


# --- batches ----------------------------------------------------------------------------------------------------------


def test_batches_have_a_row_a_size_with_what_was_drafted() -> None:
    console = Console(file=io.StringIO(), width=200)
    with EmbeddedEngine("tiny", drafter="ngram", draft={"min_match": 1}, kv_blocks=512) as engine:
        found = speculation_batches.run(engine, PROMPTS["chat"], sizes=(1, 3), tokens=12, rounds=2, console=console)
    assert found["verdict"] == "PASS" and [row["batch"] for row in found["batches"]] == [1, 3]
    for row in found["batches"]:
        assert row["vs_plain"][0] <= row["vs_plain"][1] <= row["vs_plain"][2]
        assert row["at_least"] == (row["vs_plain"][1] >= 0.97) and row["tokens_per_pass"] >= 1.0
        assert row["requested_tokens"] == row["output_tokens"] == 12 and row["input_tokens"] > 5
        for name in ("plain", "speculative"):
            assert 0 < row[name]["ttft_s"] <= row[name]["e2e_s"] and row[name]["wait_s"]["median"] <= row[name]["wait_s"]["p95"]
    text = console.file.getvalue()  # type: ignore[attr-defined]
    stops = found["stops_paying_at"]
    assert "bench-speculation-batches-0" in text
    assert (f"stops paying at a batch of {stops}" if stops else "pays at every batch") in text


def test_speculation_stops_paying_at_the_first_batch_that_is_no_faster() -> None:
    rows = [{"batch": size, "vs_plain": [0.9, ratio, 2.0]} for size, ratio in ((1, 1.8), (2, 1.001), (4, 1.0), (8, 1.1))]
    assert speculation_batches._stops(rows) == 4 and speculation_batches._stops(rows[:2]) is None
    assert speculation_batches._stops([{"batch": 1}]) is None


def test_a_batch_that_gives_other_tokens_has_no_ratio(ngram: EmbeddedEngine) -> None:
    console = Console(file=io.StringIO(), width=200)
    found = speculation_batches.run(
        Other(ngram, token_ids=(1,)), PROMPTS["chat"], sizes=(2,), tokens=12, rounds=1, console=console
    )  # fmt: skip
    assert found["verdict"] == "HOLD" and not set(speculation_batches.TIMED) & found["batches"][0].keys()
    assert "2 texts differ" in found["reasons"][0] and found["stops_paying_at"] is None
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "withheld" in text and "paying" not in text


def test_texts_that_are_too_short_to_run_together_are_refused() -> None:
    class Brief:
        tokenizer, format = type("T", (), {"chat": staticmethod(lambda messages: [1])}), "int8"

        def generate(self, requests: Iterable[Request]) -> Iterator[Event]:
            for request in requests:
                yield Delta(request.id, 0, "a", (1,))
                yield Done(request.id, 0, Completion(text="a", token_ids=(1,), finish_reason="length"))

    with pytest.raises(UsageError, match="too few"):
        speculation_batches.run(Brief(), ["x"], sizes=(2,), tokens=2, rounds=1, console=Console(quiet=True))  # type: ignore[arg-type]


# --- prompts ----------------------------------------------------------------------------------------------------------


def test_the_package_s_prompts_are_of_the_promised_kinds_and_all_different() -> None:
    found = promptsets.load()
    assert {"chat", "code", "extraction", "copying", "languages"} <= set(found)
    texts = [text for many in found.values() for text in many]
    assert len(set(texts)) == len(texts) and min(len(many) for kind, many in found.items() if kind != "long") >= 8
    assert promptsets.load(kinds=("code",), limit=2) == {"code": found["code"][:2]}


def test_the_prompts_are_those_that_figures_were_measured_on_or_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert promptsets.digest() == promptsets.SHA256
    with monkeypatch.context() as patch:
        patch.setattr(promptsets, "SHA256", "0" * 64)
        with pytest.raises(InputError, match="not the file that was frozen"):
            promptsets.load()
        assert "chat" in promptsets.load(promptsets.SPECULATION)  # named, it is a file like any other
    assert {"chat", "code", "extraction", "copying", "long"} <= set(promptsets.load())


def test_waits_count_tokens_and_not_events() -> None:
    waits = Waits()
    for tokens, now in ((2, 10.0), (0, 10.5), (1, 11.0), (4, 13.0)):
        waits.hear(tokens, now)
    assert waits.seconds == [0.0, 1.0, 0.5, 0.5, 0.5, 0.5]


def test_tokens_of_a_burst_share_the_time_that_it_was_waited_for() -> None:
    rows = {"chat": [{"plain": sample(10.0, waits=(0.1,) * 9), "a": sample(10.0, waits=(0.4, 0.1, 0.1, 0.1), repetition=0.9)}]}
    found = speculation_report.summarise(rows, ["a"], tokens=11, temperature=0.0, rounds=1, tie_nats=0.0)
    assert found["kinds"]["chat"]["a"]["wait_s"]["median"] == pytest.approx(0.1)
    assert found["kinds"]["chat"]["a"]["per_token"] is None and found["notes"] == []
    rows["chat"][0]["plain"] = sample(10.0, repetition=0.8)
    found = speculation_report.summarise(rows, ["a"], tokens=11, temperature=0.0, rounds=1, tie_nats=0.0)
    assert found["notes"] == ["chat: 85% of the median text repeats itself"]


def test_every_english_prompt_is_about_what_training_leaves_out() -> None:
    words = held_out()
    found = promptsets.load()
    assert [text for kind, many in found.items() if kind != "languages" for text in many if not words.search(text)] == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"kind": "chat"}\n', "line 1 is not"),
        (b'{"kind": "chat", "text": "a"}\n\n[1]\n', "line 3 is not"),
        (b'{"kind": "chat", "text": 7}\n', "line 1 is not"),
        (b"\xff\n", "line 1: "),
        (b"{\n", "line 1: "),
        (b"\n", "holds no prompts"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(content)
    with pytest.raises(InputError, match=said):
        promptsets.load(file)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="kind 'poetry' is unknown"):
        promptsets.load(kinds=("poetry",))


# --- the command ------------------------------------------------------------------------------------------------------

TINY = ("bench", "speculation", "--model", "tiny", "--kv-blocks", "256", "--tokens", "8", "--limit", "1", "--kind", "chat")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    return main((*TINY, *arguments)), *capsys.readouterr()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The gate says PASS to every engine but those whose drafter is `model`; the list has the drafters it was asked about."""
    seen: list[str] = []

    def run_gate(baseline: object, candidate: EmbeddedEngine) -> Report:
        who = {"baseline": identity(baseline), "candidate": identity(candidate)}  # type: ignore[arg-type]
        seen.append(who["candidate"]["drafter"])
        good = seen[-1] != "model"
        return Report(
            verdict="PASS" if good else "HOLD", reasons=() if good else ("a canary died",), tier="quick", seed=0,
            identity={**who, "hash": key(*who.values())},
        )  # fmt: skip

    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path))
    monkeypatch.setattr("toolkit.gate.run.run_gate", run_gate)
    return seen


def test_the_command_measures_the_arms_it_is_given(capsys: pytest.CaptureFixture[str], gate: list[str]) -> None:
    code, out, err = run(capsys, "--arm", "ngram:min_match=1,tokens=2", "--arm", "ngram:tokens=3", "--json")
    found = json.loads(out.splitlines()[-1])
    assert code == 0 and found["bench"] == "speculation" and "PASS" in err
    assert [arm["name"] for arm in found["arms"]] == ["plain", "ngram:min_match=1,tokens=2", "ngram:tokens=3"]
    assert all(each["verdict"] == "PASS" and len(each["hash"]) == 64 for each in found["gate"].values())
    run(capsys, "--arm", "ngram:tokens=3")
    assert gate == ["ngram", "ngram"]  # what has passed is not asked again


def test_an_arm_without_a_pass_is_not_timed(capsys: pytest.CaptureFixture[str], gate: list[str]) -> None:
    code, out, err = run(capsys, "--arm", "ngram:tokens=2", "--arm", "model:tokens=2", "--json")
    found = json.loads(out.splitlines()[-1])
    assert code == 1 and found["verdict"] == "HOLD"
    assert found["reasons"] == ["model:tokens=2 is not timed: the gate says HOLD: a canary died"]
    assert [arm["name"] for arm in found["arms"]] == ["plain", "ngram:tokens=2"] and "withheld" in err
    code, out, _ = run(capsys, "--arm", "model:tokens=2", "--json")
    found = json.loads(out.splitlines()[-1])
    assert code == 1 and found["arms"] == [] and found["ratios"] == {}


def test_batches_that_give_other_tokens_are_a_verdict_of_the_whole(
    capsys: pytest.CaptureFixture[str], gate: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {"verdict": "HOLD", "reasons": ["2 texts differ"], "batches": []}
    monkeypatch.setattr(speculation_batches, "run", lambda *given, temperature, **named: held if temperature == 0 else {**held, "reasons": []})  # fmt: skip
    code, out, _ = run(capsys, "--arm", "ngram", "--batches", "--json")
    found = json.loads(out.splitlines()[-1])
    assert code == 1 and found["verdict"] == "HOLD" and found["reasons"] == ["ngram, temperature 0: 2 texts differ"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--arm", "psychic"), "'psychic' is unknown"),
        (("--arm", "ngram:colour=red"), "no option 'colour'"),
        (("--kind", "poetry"), "kind 'poetry' is unknown"),
        (("--arm", "ngram:tokens=2", "--batches"), "chooses its own draft"),
    ],
)
def test_arms_and_kinds_that_are_none_are_a_wrong_call(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "") and said in err
