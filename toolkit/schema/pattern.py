r"""Pattern: the regular expressions of JSON Schema, searched in bounded time.

In: an ECMA-262 pattern.   Out: an object that searches a text, or gives up loudly.
Knows nothing about: schemas.
Invariants: no search runs longer than `seconds`; what could not be decided is a TimeoutError, never a verdict.
Source: JSON Schema core 6.4 (patterns are ECMA-262 with the u flag, not anchored); departures: Python's own \A and \Z are known.

The engine is the `regex` package because it can be stopped: `re` cannot, and both backtrack (`^(a|a)*$` doubles with every a).
A linear engine would refuse look-arounds, which real schemas hold. What differs from Python is translated: `$` is the very end,
`.` stops at all four line ends, \d and \w are ASCII, \s is all white space, \cX, \u{...}, [^] and [] exist.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol, cast

import regex

MAX_PATTERN_CHARS = 20_000
SEARCH_SECONDS = 0.25

_SPACE = "\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_NO_SPACE = "\\x00-\\x08\\x0e-\\x1f!-\\x9f\xa1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff\u3001-\ufefe\uff00-\U0010ffff"
_CLASSES = {  # contents of a class in square brackets
    "d": "0-9",
    "D": "\\x00-/:-\U0010ffff",
    "w": "A-Za-z0-9_",
    "W": "\\x00-/:-@\\[-\\^`{-\U0010ffff",
    "s": _SPACE,
    "S": _NO_SPACE,
}


class PatternError(ValueError):
    """A pattern that is not a regular expression."""


class Searcher(Protocol):
    """A compiled pattern. Both raise TimeoutError when `timeout` seconds were not enough."""

    def search(self, text: str, *, timeout: float) -> object | None: ...

    def fullmatch(self, text: str, *, timeout: float) -> object | None: ...


@lru_cache(maxsize=2048)
def compile_pattern(pattern: str) -> Searcher:
    """The searcher of a JSON Schema pattern. Raises PatternError."""
    return compile_regex(translate(pattern))


@lru_cache(maxsize=2048)
def compile_regex(pattern: str) -> Searcher:
    """The searcher of a regex in Python's own syntax. Raises PatternError."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise PatternError(f"pattern of {len(pattern)} characters is too long: at most {MAX_PATTERN_CHARS}")
    try:
        return cast(Searcher, regex.compile(pattern, regex.V0, cache_pattern=False))
    except (regex.error, RecursionError, OverflowError, ValueError) as error:
        raise PatternError(f"pattern {pattern[:100]!r} is no regular expression: {error}") from None


def translate(pattern: str) -> str:
    """An ECMA-262 pattern in the syntax of the `regex` package."""
    out: list[str] = []
    at, in_class = 0, False
    while at < len(pattern):
        piece, at, in_class = _piece(pattern, at, in_class)
        out.append(piece)
    return "".join(out)


def _piece(pattern: str, at: int, in_class: bool) -> tuple[str, int, bool]:
    """One translated piece, where the next begins, and whether that is inside a class."""
    for whole, piece in (("[^]", r"[\s\S]"), ("[]", r"(?!)")):
        if not in_class and pattern.startswith(whole, at):
            return piece, at + len(whole), False
    char = pattern[at]
    if char == "\\":
        return *_escape(pattern, at, in_class), in_class
    if in_class:
        return ("\\[" if char == "[" else char), at + 1, char != "]"
    if char == "$":
        return r"\Z", at + 1, False
    if char == ".":
        return r"[^\n\r\u2028\u2029]", at + 1, False
    return char, at + 1, char == "["


def _escape(pattern: str, at: int, in_class: bool) -> tuple[str, int]:
    char = pattern[at + 1 : at + 2]
    if char in _CLASSES:
        return (_CLASSES[char] if in_class else f"[{_CLASSES[char]}]"), at + 2
    if char == "c" and pattern[at + 2 : at + 3].isalpha():
        return rf"\x{ord(pattern[at + 2]) % 32:02x}", at + 3
    if char == "k" and pattern.startswith("<", at + 2):
        return r"\g", at + 2
    if pattern.startswith("{", at + 2) and char == "u":
        digits, closed, _ = pattern[at + 3 :].partition("}")
        if closed and digits and len(digits) <= 6 and all(each in "0123456789abcdefABCDEF" for each in digits):
            return rf"\U{int(digits, 16):08x}", at + 4 + len(digits)
    return pattern[at : at + 2], at + 2
