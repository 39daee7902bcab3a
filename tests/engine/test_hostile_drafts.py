"""Drafters that do all they must not: the text is plain decoding's, what they did is said in one line, the next request is as good."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.guessers import VOCABULARY, Scripted, ScriptedDrafter, knowing
from tests.engine.test_speculative import SCHEMA, plain, run, same
from toolkit.contracts import Grammar, Request, SamplingParams
from toolkit.draft.contract import Budget
from toolkit.draft.tree import DraftTree, chain
from toolkit.engine import stride as pacing
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.loops.speculative import MOST_SAID
from toolkit.engine.pace import Pace
from toolkit.engine.pass_costs import PassCosts
from toolkit.engine.stride import Stride
from toolkit.errors import UsageError
from toolkit.grammar.llguidance_backend import LLMatcher

DRAWN = Request(prompt="Tell me: ", sampling=SamplingParams(max_tokens=12, temperature=1.0, seed=5))
FLAT = torch.full((1, VOCABULARY), 1 / VOCABULARY)


class MuteError(Exception):
    """An error that cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def raising(error: BaseException) -> Callable[[Budget], Any]:
    def guess(budget: Budget) -> Any:
        raise error

    return guess


def deeper(budget: Budget) -> Any:
    return deeper(budget)


BAD: dict[str, tuple[Callable[[Budget], Any], str]] = {
    "nothing": (lambda budget: None, "AttributeError"),
    "a list": (lambda budget: [1, 2], "AttributeError"),
    "a fraction": (lambda budget: DraftTree((3.0,), (-1,)), "plain integers"),  # type: ignore[arg-type]
    "a number of numpy": (lambda budget: DraftTree((np.int64(3),), (-1,)), "plain integers"),  # type: ignore[arg-type]
    "a truth value": (lambda budget: DraftTree((1, 2), (-1, False)), "plain integers"),
    "a word": (lambda budget: DraftTree(("a",), (-1,)), "plain integers"),  # type: ignore[arg-type]
    "a negative token": (lambda budget: chain([-1]), "proposed token -1"),
    "a token past the end": (lambda budget: chain([VOCABULARY]), "vocabulary ends"),
    "a circle": (lambda budget: DraftTree((1, 2), (1, 0)), "a parent comes before"),
    "twins": (lambda budget: DraftTree((1, 1), (-1, -1)), "two equal siblings"),
    "a million nodes": (lambda budget: DraftTree((1,) * 10**6, (-1,) * 10**6), "too large"),
    "too deep": (lambda budget: chain([1] * (budget.depth + 1)), "asked for were at most"),
    "q of nothing": (lambda budget: chain([1], FLAT * torch.nan), "no distribution"),
    "q of another shape": (lambda budget: chain([1], FLAT[None]), "must be"),
    "q of numpy": (lambda budget: DraftTree((1,), (-1,), FLAT.numpy()), "AttributeError"),  # type: ignore[arg-type]
    "q of complex numbers": (lambda budget: chain([1], FLAT.to(torch.complex64)), "complex64"),
    "SystemExit": (raising(SystemExit(3)), "SystemExit: 3"),
    "KeyboardInterrupt": (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
    "GeneratorExit": (raising(GeneratorExit()), "GeneratorExit"),
    "StopIteration": (raising(StopIteration()), "StopIteration"),
    "an error without words": (raising(MuteError()), "MuteError"),
    "an error of many words": (raising(ValueError("\x1b[2J" + "x" * 10**6)), "ValueError:  "),
    "no end of calls": (deeper, "RecursionError"),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine("tiny", kv_blocks=1200, block_size=4, prefix_cache=False) as opened:
        yield opened


@pytest.mark.parametrize("name", list(BAD))
def test_whatever_a_drafter_does_its_request_goes_on_plainly_and_says_so(engine: EmbeddedEngine, name: str) -> None:
    guess, why = BAD[name]
    source = Scripted(lambda text, budget, noise: guess(budget) if len(text) > 14 else chain([1]))
    (found,) = run(engine, source, DRAWN)
    (note,) = found.notes
    assert note.startswith("speculation with 'scripted' was switched off: ") and why in note
    assert note.isprintable() and len(note) < 100 + MOST_SAID
    assert same(replace(found, notes=()), plain(engine, DRAWN)[0])
    assert [drafter.closed for drafter in source.opened] == [1]


def test_a_drafter_that_cannot_even_be_closed_is_told_of(engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedDrafter, "close", raising(SystemExit(4)))
    (found,) = run(engine, Scripted(lambda text, budget, noise: chain([-1])), DRAWN)
    why, closing = found.notes
    assert "failed while closing: SystemExit: 4" in closing and "proposed token -1" in why
    assert same(replace(found, notes=()), plain(engine, DRAWN)[0])


def test_a_grammar_engine_that_fails_under_a_draft_leaves_the_text_where_it_was(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tokens deep in a draft, `advance` fails once: the matcher must be taken back both, or all masks behind are wrong."""
    request = Request(prompt="x", sampling=SamplingParams(max_tokens=60), grammar=SCHEMA)
    (expected,) = plain(engine, request)
    line = [*engine.tokenizer.encode("x"), *expected.token_ids]
    advance, since, failed = LLMatcher.advance, 0, 0

    def guess(text: list[int], budget: Budget, noise: random.Random) -> DraftTree:
        nonlocal since
        since = 1
        return chain(line[len(text) : len(text) + budget.depth])

    def failing(self: LLMatcher, tokens: Any) -> None:
        nonlocal since, failed
        since += since > 0
        if since == 4 and not failed:
            failed = 1
            raise UsageError("beyond its limits")
        advance(self, tokens)

    monkeypatch.setattr(LLMatcher, "advance", failing)
    (found,) = run(engine, Scripted(guess), request)
    assert failed and "beyond its limits" in found.notes[0]
    assert same(replace(found, notes=()), expected)


@pytest.mark.parametrize("left", [1, 2, 3, 9])
def test_at_the_end_of_the_context_no_tree_goes_further_than_the_text_may(engine: EmbeddedEngine, left: int) -> None:
    context = engine.capabilities.context
    request = Request(prompt=[5] * (context - left), sampling=SamplingParams(max_tokens=50, ignore_eos=True))
    (expected,) = plain(engine, request)
    line = [*[5] * (context - left), *expected.token_ids]
    (found,) = run(engine, Scripted(knowing(line + [1] * 40, wrong=0.0)), request, tokens=8)
    assert same(found, expected) and len(found.token_ids) == left and found.usage.proposed >= (left > 2)


TIGHT: dict[str, Request] = {
    "one token": Request(prompt="x", sampling=SamplingParams(max_tokens=1)),
    "two tokens": Request(prompt="x", sampling=SamplingParams(max_tokens=2)),
    "all drafts are banned": Request(prompt="x", sampling=SamplingParams(max_tokens=8, logit_bias=dict.fromkeys(range(97, 123), -1e4))),
    "all tokens are": Request(prompt="x", sampling=SamplingParams(max_tokens=8, logit_bias=dict.fromkeys(range(VOCABULARY), -1e4))),
    "one text is allowed": Request(
        prompt="x", sampling=SamplingParams(max_tokens=40), grammar=Grammar("json_schema", '{"const":{"abc":[1,2,3],"d":"hello"}}')
    ),
    "and cut off": Request(
        prompt="x", sampling=SamplingParams(max_tokens=9), grammar=Grammar("json_schema", '{"const":{"abc":[1,2,3],"d":"hello"}}')
    ),
    "a stop inside a burst": Request(prompt="x", sampling=SamplingParams(max_tokens=40, stop=('":[', "lo"), logit_bias=dict.fromkeys(b'":[lo', 9.0))),
    "a stop of half a character": Request(prompt="ü", sampling=SamplingParams(max_tokens=40, stop=("é",), logit_bias={0xC3: 12.0, 0xA9: 11.9, 0xA8: 11.8})),
    "three samples": Request(prompt="x", sampling=SamplingParams(max_tokens=9, n=3, temperature=1.0, seed=3)),
}  # fmt: skip


@pytest.mark.parametrize("name", list(TIGHT))
def test_where_next_to_nothing_may_follow_bursts_give_what_single_tokens_give(engine: EmbeddedEngine, name: str) -> None:
    expected = plain(engine, TIGHT[name])
    texts = [[*engine.tokenizer.encode(str(TIGHT[name].prompt)), *each.token_ids] for each in expected]
    for guess in (*(knowing(text, wrong=0.0) for text in texts), lambda text, budget, noise: chain([97] * budget.depth)):
        found = run(engine, Scripted(guess), TIGHT[name])
        assert all(same(a, b) for a, b in zip(found, expected, strict=True)), name


def test_a_drafter_that_costs_more_than_it_could_ever_save_is_switched_off_however_far_it_was_told_to_look(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "PATIENCE", 0.001)
    costs = PassCosts()
    costs.learn(1, 1e-9)

    def guess(text: list[int], budget: Budget, noise: random.Random) -> DraftTree:
        time.sleep(0.002)
        return chain([1])

    source = Scripted(guess)
    engine._source, engine._pace = source, Pace(costs, tokens=4)
    found = engine.complete(DRAWN.prompt, max_tokens=12, temperature=1.0, seed=5)
    (note,) = found.notes
    assert "was switched off: it took " in note and found.usage.verify_passes == 1 and source.opened[0].closed == 1
    assert found.token_ids == plain(engine, DRAWN)[0].token_ids


def test_a_drafter_may_take_the_time_to_read_that_the_target_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prompt is read once, before the first guess: that alone is no reason to give a drafter up."""
    monkeypatch.setattr(pacing, "PATIENCE", 1.0)
    costs = PassCosts()
    for rows, seconds in ((1, 0.01), (64, 0.1)):
        costs.learn(rows, seconds)
    stride = Stride(Pace(costs), SamplingParams())
    stride.hear(6400)
    stride.spend(10.9)
    assert stride.is_too_slow == ""
    stride.spend(0.2)
    assert "it took 11.1 s, its 0 guesses could save 10.0 s" in stride.is_too_slow
    for _ in range(3):
        stride.learn(chain([1] * 5), 0)
    assert stride.is_too_slow == ""


def test_a_drafter_on_a_busy_machine_may_be_as_late_as_the_target_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes that took thirty times what they are known to take say that others want the machine: of the drafter's calls no less is to be expected."""
    monkeypatch.setattr(pacing, "PATIENCE", 1.0)
    costs = PassCosts()
    costs.learn(1, 0.01)
    before, stride = (Stride(Pace(costs), SamplingParams()) for _ in range(2))
    for _ in range(20):
        stride.learn(chain([1] * 4), 0)
        costs.learn(1, 0.3)
    stride.spend(24.0)  # a guess took what a pass did
    assert stride.is_too_slow == ""
    stride.spend(1.5)
    assert "it took 25.5 s, its 80 guesses could save 24.0 s at most" in stride.is_too_slow
    later = Stride(Pace(costs), SamplingParams())  # held up before it began, not since
    for each in (before, later):
        each.learn(chain([1] * 4), 0)
        each.spend(1.5)
    assert "" == before.is_too_slow != later.is_too_slow
