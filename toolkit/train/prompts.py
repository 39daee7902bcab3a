"""Prompts: what the base model is asked when it makes its training data.

In: a seed and the number of a task.   Out: that task: the ids to start from, and how its turns are drawn.
Two sources: a small grammar of templates x topics (prompts/grammar.toml), and user turns that the base model writes itself
after an opened user turn (Magpie, 2406.08464): under one of several system turns (prompts/systems.toml), or after the first
words of a question (prompts/starts.toml), since what a model asks all by itself is narrower than what people do.
Knows nothing about: models, files of data.
Invariants: a task depends on seed and number alone; no prompt of the grammar mentions a word of prompts/held_out.txt, which the
evaluation prompts are about, and `Drawn.accept` refuses drawn turns that do.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from toolkit.contracts import Tokenizer
from toolkit.errors import UnsupportedError

HERE = Path(__file__).parent / "prompts"
DRAWN = 0.85  # share of tasks whose user turn the model writes
STARTED = 0.7  # share of those whose first words are given
GREEDY = 0.7  # share of replies without chance
_MOST_TURN = 160  # tokens of a drawn user turn
_LEAST_TURN = 3
_SYMBOL = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True, slots=True)
class Task:
    """ids to start from. `turn_end` >= 0: a user turn, begun at `turn`, is drawn until this token, then `opening` follows; -1: ids
    are a whole prompt.
    """

    number: int
    ids: tuple[int, ...]
    turn: int
    turn_end: int
    opening: tuple[int, ...]
    temperature: float
    seed: int


class Prompts:
    """Tasks of one tokenizer and seed."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer = tokenizer
        self._seed = seed
        self._grammar = grammar()
        self._systems, self._starts = _listed("systems"), starts_of_turns()
        self._held_out = held_out()

    def task(self, number: int) -> Task:
        """The task of that number."""
        dice = random.Random(f"{self._seed}/{number}")
        temperature = 0.0 if dice.random() < GREEDY else dice.uniform(0.7, 1.0)
        seed = dice.getrandbits(32)
        if dice.random() < DRAWN:
            start = dice.choice(self._starts) if dice.random() < STARTED else ""
            ids, closing = _opened(self._tokenizer, "" if start else dice.choice(self._systems))
            begun = self._tokenizer.encode(start) if start else []
            return Task(number, (*ids, *begun), len(ids), closing[0], tuple(closing[1:]), temperature, seed)
        messages = [{"role": "user", "content": expand(self._grammar, dice)}]
        return Task(number, tuple(self._tokenizer.chat(messages)), -1, -1, (), temperature, seed)

    def accept(self, turn: Sequence[int]) -> bool:
        """Whether a drawn user turn is worth a reply: of some length, no repetition, nothing held out."""
        if not _LEAST_TURN <= len(turn) < _MOST_TURN or loops(turn, 8):
            return False
        text = self._tokenizer.decode(turn)
        letters = sum(char.isalpha() for char in text)
        return "\ufffd" not in text and 2 * letters >= len(text) and self._held_out.search(text) is None


def expand(rules: Mapping[str, Sequence[str]], dice: random.Random) -> str:
    """One prompt of the grammar."""
    weights, symbols = zip(*(line.split() for line in rules["prompt"]), strict=True)
    text: str = "{" + dice.choices(symbols, [int(weight) for weight in weights])[0] + "}"
    while (found := _SYMBOL.search(text)) is not None:
        text = f"{text[: found.start()]}{dice.choice(rules[found[1]])}{text[found.end() :]}"
    return text


@cache
def grammar() -> dict[str, list[str]]:
    """The rules of prompts/grammar.toml."""
    rules: dict[str, list[str]] = tomllib.loads((HERE / "grammar.toml").read_text(encoding="utf-8"))
    return rules


def starts_of_turns() -> list[str]:
    """The first words that user turns are given (prompts/starts.toml)."""
    return _listed("starts")


def _listed(name: str) -> list[str]:
    """The list in prompts/<name>.toml."""
    found: list[str] = tomllib.loads((HERE / f"{name}.toml").read_text(encoding="utf-8"))[name]
    return found


@cache
def held_out() -> re.Pattern[str]:
    """Finds a word that only the evaluation prompts may be about, plural or not."""
    words = (HERE / "held_out.txt").read_text(encoding="utf-8").split("\n")
    return re.compile(r"\b(?:" + "|".join(re.escape(word) for word in words if word) + r")(?:s|es)?\b", re.IGNORECASE)


def loops(tokens: Sequence[int], size: int) -> bool:
    """Whether the last `size` tokens stood there before, word for word: greedy text that does so rarely finds out again."""
    if len(tokens) < 2 * size:
        return False
    tail = list(tokens[-size:])
    return any(list(tokens[i : i + size]) == tail for i in range(len(tokens) - 2 * size, -1, -1))


def _opened(tokenizer: Tokenizer, system: str) -> tuple[list[int], list[int]]:
    """Ids up to the user's first token, and what follows the last one until the assistant speaks."""
    before = [{"role": "system", "content": system}] if system else []
    one, two = (tokenizer.chat([*before, {"role": "user", "content": text}]) for text in ("a", "b"))
    start = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))
    if len(one) != len(two) or start + 1 >= len(one) or one[start + 1 :] != two[start + 1 :]:
        raise UnsupportedError("this chat template does not show where a user turn begins and ends")
    return one[:start], one[start + 1 :]
