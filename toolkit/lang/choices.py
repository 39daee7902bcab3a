"""Choices: `select` by the model's own likelihood of each choice.

In: the program's text, the choices, one of SGLang's three methods (or any other ChoicesSamplingMethod).
Out: SGLang's ChoicesDecision. Log-probabilities come from `engine.score`; the methods are SGLang's own code.

A choice is tokenised together with the text before it, as it would be in a prompt: where a token spans the seam, the
choice's tokens begin with that token (token healing), so that "a:" + " yes" and "a: " + "yes" are judged by real tokens.
The unconditional likelihood takes the choice's tokens alone, where the first has no predecessor and counts nothing.
Departure from SGLang's RuntimeEndpoint: every log-probability given to a method is a number, so that
`greedy_token_selection` works (there the first one is null).

Knows nothing about: sampling, grammars.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from sglang.lang.choices import ChoicesDecision, ChoicesSamplingMethod

from toolkit.contracts import Engine
from toolkit.errors import UnsupportedError, UsageError
from toolkit.lang.checks import check_choices
from toolkit.lang.meta import Entry, entry

ALMOST_ZERO = 1e-5  # SGLang's own limit of a temperature that counts as 0


def choose(
    engine: Engine, text: str, choices: Sequence[str], temperature: float, method: ChoicesSamplingMethod
) -> ChoicesDecision:
    """The choice that `method` prefers after `text`. UnsupportedError for a temperature or an engine that cannot score."""
    if temperature > ALMOST_ZERO:
        raise UnsupportedError(
            f"select with temperature = {temperature!r} is not supported: a choice is taken by likelihood, not drawn",
            hint="use beam(choices=...) or gen(regex=...) to draw among choices",
        )
    if not engine.capabilities.score:
        raise UnsupportedError(f"engine {engine.capabilities.engine} cannot score continuations, which select needs")
    check_choices(choices)
    seams = [_split(engine, text, choice) for choice in choices]
    scored = _score(engine, seams)
    return method(
        choices=list(choices),
        normalized_prompt_logprobs=[_mean(entries) for entries in scored],
        input_token_logprobs=scored,
        output_token_logprobs=[[] for _ in choices],
        unconditional_token_logprobs=(
            [_alone(engine, ids) for _, ids in seams] if method.requires_unconditional_logprobs else None
        ),
    )


def _split(engine: Engine, text: str, choice: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(ids before, ids of the choice): the seam is where the ids of the text with and without the choice part."""
    before = engine.tokenizer.encode(text, control=True)
    whole = engine.tokenizer.encode(text + choice, control=True)
    seam = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(before, whole, strict=False))))
    if seam == 0:
        raise UsageError(f"select right at the start of a program is not allowed: no token precedes choice {choice!r}")
    return tuple(whole[:seam]), tuple(whole[seam:])


def _score(engine: Engine, seams: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[list[Entry]]:
    """Entries of every choice; one call an engine for all that share the ids before."""
    logprobs: dict[tuple[tuple[int, ...], tuple[int, ...]], list[float]] = {}
    for before in dict.fromkeys(prefix for prefix, _ in seams):
        mine = list(dict.fromkeys(ids for prefix, ids in seams if prefix == before))
        for ids, found in zip(mine, engine.score(before, mine), strict=True):
            logprobs[before, ids] = found
    return [_entries(engine, ids, logprobs[before, ids]) for before, ids in seams]


def _alone(engine: Engine, ids: tuple[int, ...]) -> list[Entry]:
    rest = engine.score(ids[:1], [ids[1:]])[0] if len(ids) > 1 else []
    return _entries(engine, ids, [None, *rest])


def _entries(engine: Engine, ids: Sequence[int], logprobs: Sequence[float | None]) -> list[Entry]:
    return [entry(logprob, token_id, engine.tokenizer) for token_id, logprob in zip(ids, logprobs, strict=True)]


def _mean(entries: Sequence[Entry]) -> float:
    return sum(float(each[0]) for each in entries) / len(entries)
