"""Corpus: what the gate lets engines write about - a fixed file of requests, chosen and varied by a seed.

In: how many, random numbers.   Out: texts of a user's turn.
Knows nothing about: engines.
"""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

FILE = Path(__file__).parent / "requests.jsonl"
_WORDS = ("Please", "Now", "Once more", "Today", "For a friend", "In short", "With care", "As before")


def texts(count: int, dice: random.Random) -> list[str]:
    """`count` requests, no two alike: chosen without repetition as long as there are some, each with an opening of its own."""
    known = list(rows())
    found: list[str] = []
    while len(found) < count:
        found += [f"{dice.choice(_WORDS)} ({dice.randrange(1000)}): {text}" for _, text in dice.sample(known, len(known))]
    return found[:count]


@cache
def rows() -> tuple[tuple[str, str], ...]:
    """(kind, text) of every request of the file."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return tuple((row["kind"], row["text"]) for row in map(json.loads, filter(None, lines)))
