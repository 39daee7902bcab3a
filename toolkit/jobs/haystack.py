"""Haystack: one text in which values are looked for: as they are, normalised, and nearly.

In: a text, needles.   Out: the characters [start, end) of the text that a needle stands for, how it was found and at what distance.
Knows nothing about: records, schemas.
Invariants: what is found "exact" is the needle; "normalised" it is after NFKC, case folding, plain quotes and dashes, and one
space for any white space; "fuzzy" spans have a Levenshtein distance (normalised texts) of at most `most` per character of the longer
of the two. Time is bounded: needles above FUZZY_NEEDLE and the text behind FUZZY_TEXT are not searched nearly, the text behind
NORMAL_TEXT only exactly.
A place with no word running on at either end is preferred to one inside a word.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Method = Literal["exact", "normalised", "fuzzy"]

FUZZY_NEEDLE, FUZZY_TEXT = 256, 200_000
NORMAL_TEXT = 1_000_000
_TRIES = 64  # places looked at for one that is a word of its own
_SNAP = 4  # characters that the ends of a near place are moved at most
_PLAIN = str.maketrans(
    {"‘": "'", "’": "'", "‚": "'", "“": '"', "”": '"', "„": '"', "‐": "-", "‑": "-", "–": "-", "—": "-", "−": "-"}
)
_WORDS = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class Place:
    """Characters [start, end) of a text. distance: edits for each character, 0 unless fuzzy."""

    start: int
    end: int
    method: Method
    distance: float = 0.0


class Haystack:
    """`Haystack(text).find("Mia Chen")`; what is computed for one needle serves the next."""

    def __init__(self, text: str) -> None:
        self.text = text

    def find(self, needle: str, *, most: float = 0.0, start: int = 0, end: int | None = None) -> Place | None:
        """Where `needle` stands in text[start:end]; None where it does not. `most` > 0 looks for near places, too."""
        end = len(self.text) if end is None else end
        if not needle.strip():
            return None
        at = _best(self.text, needle, start, end)
        if at is not None:
            return Place(at, at + len(needle), "exact")
        wanted = normal(needle)
        low, high = self._inside(start), self._inside(end)
        at = _best(self._normal.text, wanted, low, high) if wanted else None
        if at is not None:
            return self._place(at, at + len(wanted), "normalised", 0.0)
        return self._near(wanted, most, low, high) if most > 0 and wanted else None

    @cached_property
    def _normal(self) -> _Normal:
        return _Normal(self.text[:NORMAL_TEXT])

    def _inside(self, position: int) -> int:
        """First character of the normalised text that comes from `position` or behind it."""
        starts = self._normal.starts
        low, high = 0, len(starts)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if starts[middle] < position else (low, middle)
        return low

    def _place(self, start: int, end: int, method: Method, distance: float) -> Place:
        return Place(self._normal.starts[start], self._normal.ends[end - 1], method, distance)

    def _near(self, needle: str, most: float, low: int, high: int) -> Place | None:
        from rapidfuzz import fuzz
        from rapidfuzz.distance import Levenshtein

        text = self._normal.text[low : min(high, low + FUZZY_TEXT)]
        if len(needle) > FUZZY_NEEDLE or len(text) < 1:
            return None
        found = fuzz.partial_ratio_alignment(needle, text, score_cutoff=max(0.0, 100 * (1 - 2 * most)))
        if found is None:
            return None
        starts = range(max(0, found.dest_start - _SNAP), min(len(text), found.dest_start + _SNAP + 1))
        ends = range(max(1, found.dest_end - _SNAP), min(len(text), found.dest_end + _SNAP) + 1)
        tries = [(a, b) for a in starts for b in ends if a < b and _bounded(text, a, b)]
        tries = tries or [(found.dest_start, found.dest_end)]
        distance, a, b = min((Levenshtein.normalized_distance(needle, text[a:b]), a, b) for a, b in tries)
        return None if distance > most else self._place(low + a, low + b, "fuzzy", distance)


class _Normal:
    """A text normalised, with the characters of the original behind every one of its own."""

    def __init__(self, text: str) -> None:
        parts: list[str] = []
        self.starts, self.ends = array("L"), array("L")
        for word in _WORDS.finditer(text):
            if parts:
                parts.append(" ")
                self.starts.append(self.ends[-1])
                self.ends.append(word.start())
            self._word(word.group(), word.start(), parts)
        self.text = "".join(parts)

    def _word(self, word: str, start: int, parts: list[str]) -> None:
        if word.isascii():
            parts.append(word.lower())
            self.starts.extend(range(start, start + len(word)))
            self.ends.extend(range(start + 1, start + len(word) + 1))
            return
        for first, last in _clusters(word):
            made = "".join(_fold(word[first:last]).split())
            parts.append(made)
            self.starts.extend([start + first] * len(made))
            self.ends.extend([start + last] * len(made))


def normal(text: str) -> str:
    """A text as it is compared: NFKC, case folded, plain quotes and dashes, single spaces."""
    return " ".join(_fold(text).split())


def _fold(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).translate(_PLAIN).casefold())


def _clusters(word: str) -> list[tuple[int, int]]:
    """Pieces that normalise by themselves: a character with the marks (and Hangul vowels and finals) behind it."""
    cuts = [i for i, char in enumerate(word) if i == 0 or not (unicodedata.combining(char) or "\u1160" <= char <= "\u11ff")]
    return list(zip(cuts, [*cuts[1:], len(word)], strict=True))


def _best(text: str, needle: str, start: int, end: int) -> int | None:
    """The first place that is no part of a longer word, else the first."""
    first = at = text.find(needle, start, end)
    for _ in range(_TRIES):
        if at < 0:
            break
        if _bounded(text, at, at + len(needle)):
            return at
        at = text.find(needle, at + 1, end)
    return None if first < 0 else first


def _bounded(text: str, start: int, end: int) -> bool:
    return not (start > 0 and _one_word(text[start - 1], text[start])) and not (
        end < len(text) and _one_word(text[end - 1], text[end])
    )


def _one_word(left: str, right: str) -> bool:
    """Do these two stand inside one word? Scripts without spaces (from U+2E80 on) have no such words."""
    return left.isalnum() and right.isalnum() and left < "\u2e80" and right < "\u2e80"
