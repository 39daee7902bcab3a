"""Peers: the gate before speed, and the transformers side's own pieces."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

from tests.bench.bench_scripted import EOS, Bytes, ScriptedEngine
from toolkit.bench import peers
from toolkit.bench.task import Item
from toolkit.bench.transformers_peer import allowed_tokens_fn, trim
from toolkit.contracts import Grammar, Json, Request
from toolkit.errors import UsageError

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
ITEMS = [Item(f"r{n}", "text", f"prompt {n}", SCHEMA, [{"n": [n]}]) for n in range(3)]


def script(_: Request) -> list[tuple[Json, float]]:
    return [({"n": 1}, -1.0), ({"n": 2}, -2.0)]


class Mirror:
    """A peer that answers what it is told."""

    def __init__(self, *answers: str) -> None:
        self.answers = answers

    def decode(self, prompt: Sequence[int], grammar: Grammar, width: int, alpha: float, max_tokens: int) -> tuple[int, ...]:
        return (*self.answers[0 if width == 1 else -1].encode(), EOS)


def compare(peer: Mirror, engine: ScriptedEngine | None = None) -> tuple[dict[str, Any], str]:
    console = Console(file=io.StringIO(), width=160)
    found = peers.compare(
        engine or ScriptedEngine(script), peer, ITEMS, width=4, alpha=1.0, max_tokens=32, console=console
    )  # fmt: skip
    return found, console.file.getvalue()  # type: ignore[attr-defined]


def test_equal_greedy_tokens_open_the_ratios() -> None:
    found, text = compare(Mirror('{"n":1}', '{"n":2}'))
    assert found["verdict"] == "PASS"
    assert set(found["ratios"]) == {
        "beam4_vs_greedy", "beam4_vs_transformers", "greedy_vs_transformers", "transformers_beam4_vs_greedy",
    }  # fmt: skip
    assert [arm["name"] for arm in found["arms"]] == ["greedy", "beam", "transformers_greedy", "transformers_beam"]
    assert found["ceiling"] == {"beam4_vs_greedy": 1.5}
    assert all(not row["beam_equal"] for row in found["per_record"])
    assert found["cached_share"] == pytest.approx(15 / sum(len(item.prompt) for item in ITEMS))
    assert "<!-- bench-peers -->" in text
    json.dumps(found)


def test_other_greedy_tokens_hold_every_speed_back() -> None:
    found, text = compare(Mirror('{"n":7}', '{"n":1}'))
    assert found["verdict"] == "HOLD" and "differ from transformers on 3 of 3" in found["reasons"][0]
    assert found["ratios"] == {} and found["arms"] == []
    assert all("seconds" not in row for row in found["per_record"])
    assert "seconds are withheld" in text


def test_texts_of_an_integer_engine_may_part_at_a_near_tie_and_are_counted() -> None:
    class Integer(ScriptedEngine):
        format = "int8 (portable)"
        apart = 0.1

        def score(self, prompt: Any, continuations: Sequence[Sequence[int]]) -> list[list[float]]:
            return [[-1.0 - self.apart * i] * len(tokens) for i, tokens in enumerate(continuations)]

    near, text = compare(Mirror('{"n":7}', '{"n":1}'), Integer(script))
    assert near["verdict"] == "PASS" and near["near_ties"] == 3 and "near-tie" in text
    Integer.apart = 0.3
    far, _ = compare(Mirror('{"n":7}', '{"n":1}'), Integer(script))
    assert far["verdict"] == "HOLD" and far["ratios"] == {}


def test_a_width_of_one_and_no_records_are_refused() -> None:
    engine, console = ScriptedEngine(script), Console(file=io.StringIO())
    with pytest.raises(UsageError, match="width = 1"):
        peers.compare(engine, Mirror("{}"), ITEMS, width=1, alpha=1.0, max_tokens=8, console=console)
    with pytest.raises(UsageError, match="no record"):
        peers.compare(engine, Mirror("{}"), [], width=4, alpha=1.0, max_tokens=8, console=console)


class Word:
    """A matcher of one word over bytes."""

    def __init__(self, word: bytes, at: int = 0) -> None:
        self.word, self.at = word, at

    def fill(self, mask: Any, row: int) -> None:
        mask[row] = 0
        token = self.word[self.at] if self.at < len(self.word) else EOS
        for allowed in (token, ord("z")) if self.at == 1 else (token,):
            mask[row, allowed // 32] |= 1 << allowed % 32

    def forced(self) -> list[int]:
        return (
            list(self.word[self.at :]) if self.at == 1 else []
        )  # forced there: the mask, which would allow more, is not asked

    def accepts(self, tokens: Sequence[int]) -> int:
        return int(self.at < len(self.word) and tokens[0] == self.word[self.at])

    def advance(self, tokens: Sequence[int]) -> None:
        self.at += len(tokens)

    def fork(self) -> Word:
        return Word(self.word, self.at)


class OneWord:
    partial = ()

    def matcher(self) -> Any:
        return Word(b"ab")


def test_allowed_tokens_follow_the_matcher_and_beams_that_left_it_may_only_end() -> None:
    torch = pytest.importorskip("torch")
    allowed = allowed_tokens_fn(OneWord(), Bytes(), 2)
    prompt = [9, 9]

    def after(*ids: int) -> list[int]:
        found: list[int] = allowed(0, torch.tensor(prompt + list(ids))).tolist()
        return found

    assert after() == [ord("a")]
    assert after(*b"ab") == [EOS]  # states of the way there are built on demand
    assert after(ord("a")) == [ord("b")]
    assert after(ord("x")) == [EOS]
    assert after(ord("x"), ord("b")) == [EOS]
    assert after(*b"ab", EOS) == [EOS]


def test_padding_after_the_end_token_is_cut() -> None:
    assert trim([1, 2, EOS, EOS], (EOS,)) == (1, 2, EOS)
    assert trim([1, 2], (EOS,)) == (1, 2)
