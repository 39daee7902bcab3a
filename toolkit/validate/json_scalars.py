"""Scalars: strings, numbers and words of JSON, read one piece of text after another.

In: pieces of text, cut anywhere, from the first character of the scalar on.   Out: its value once it has `ended`.
Knows nothing about: objects, arrays, where the scalar stands.
Invariants: the first character that no continuation makes good is refused (`Refused`); time is linear in the text.
Source: RFC 8259, 6 and 7; departures: numbers of bounded length that a float can hold, no half surrogate pairs.
"""

from __future__ import annotations

import math
import re
from typing import Protocol

from toolkit.contracts import Json

_RUN = re.compile('[^"\\\\\x00-\x1f\ud800-\udfff]*')
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX = frozenset("0123456789abcdefABCDEF")
_WORDS: dict[str, tuple[str, Json]] = {"t": ("true", True), "f": ("false", False), "n": ("null", None)}
_DIGITS, _NONZERO = "0123456789", "123456789"
_HALF = "a string holds half of a surrogate pair, which is no character"
STARTS = frozenset('"-tfn' + _DIGITS)  # what a scalar may begin with


class Refused(Exception):  # noqa: N818 - a signal between this module and the machine, which adds the path
    """The character at index `at` cannot stand there."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(why)
        self.at, self.why = at, why


class Scalar(Protocol):
    """A scalar in the making."""

    ended: bool

    def read(self, text: str, at: int) -> int:
        """Read text[at:] up to the scalar's end; the index after the last character read. Raises Refused."""

    def close(self) -> bool:
        """The text has ended: is the scalar whole?"""

    @property
    def value(self) -> Json: ...


def scalar_of(char: str, max_digits: int) -> Scalar:
    """The reader for a scalar that begins with `char`, which it still has to read."""
    return StringReader() if char == '"' else WordReader(char) if char in _WORDS else NumberReader(max_digits)


def found(char: str) -> str:
    """A character as a message shows it; one in U+DC80..U+DCFF stands for a byte."""
    return f"the byte 0x{ord(char) - 0xDC00:02x}, which is no UTF-8" if "\udc80" <= char <= "\udcff" else repr(char)


class StringReader:
    """A string, quotes included. `grown` is what the last `read` added to it: runs of characters, each with its index.

    Character k of a run stands at index + k; a run of one character may come from an escape and then has the index of its end.
    """

    def __init__(self) -> None:
        self.ended = False
        self.grown: list[tuple[int, str]] = []
        self._parts: list[str] = []
        self._state = "quote"
        self._high = ""  # first half of a surrogate pair, four hexadecimal digits
        self._hex = ""

    @property
    def value(self) -> str:
        return "".join(self._parts)

    def close(self) -> bool:
        return self.ended

    def read(self, text: str, at: int) -> int:
        self.grown = []
        while at < len(text) and not self.ended:
            at = self._run(text, at) if self._state == "text" else self._one(text[at], at)
        return at

    @property
    def in_text(self) -> bool:
        """Whether a character beyond ASCII may come next."""
        return self._state == "text" and not self.ended

    def _grow(self, piece: str, at: int) -> None:
        self._parts.append(piece)
        self.grown.append((at, piece))

    def _run(self, text: str, at: int) -> int:
        match = _RUN.match(text, at)
        end = match.end() if match else at
        if end > at:
            self._grow(text[at:end], at)
        if end == len(text):
            return end
        self.ended = text[end] == '"'
        if not self.ended and text[end] != "\\":
            raise Refused(end, f"expected the rest of a string, found {found(text[end])}")
        self._state = "escape"
        return end + 1

    def _one(self, char: str, at: int) -> int:
        if self._state == "quote":
            self._state = "text"
        elif self._state == "hex":
            self._digit(char, at)
        elif self._state == "escape":
            self._escape(char, at)
        elif char != self._state:  # "\\" or "u": the second half of a pair has to follow
            raise Refused(at, _HALF)
        else:
            self._state, self._hex = ("u" if char == "\\" else "hex"), ""
        return at + 1

    def _escape(self, char: str, at: int) -> None:
        if char == "u":
            self._state, self._hex = "hex", ""
        elif char in _ESCAPES:
            self._grow(_ESCAPES[char], at)
            self._state = "text"
        else:
            raise Refused(at, f"expected an escape, found {found(char)}")

    def _digit(self, char: str, at: int) -> None:
        if char not in _HEX:
            raise Refused(at, f"expected a hexadecimal digit, found {found(char)}")
        self._hex += char.lower()
        second = self._hex[1:2]
        if (self._high and self._hex[0] != "d") or (second and (self._hex[0] == "d" and second >= "c") != bool(self._high)):
            raise Refused(at, _HALF)
        if len(self._hex) < 4:
            return
        if self._hex[0] == "d" and second in "89ab":
            self._high, self._state = self._hex, "\\"
            return
        self._grow(bytes.fromhex(self._high + self._hex).decode("utf-16-be"), at)
        self._high, self._state = "", "text"


def _row(*ways: tuple[str, str]) -> dict[str, str]:
    return {char: state for chars, state in ways for char in chars}


# A number's automaton: state -> character -> state. In the states of _WHOLE it may end.
_NUMBER = {
    "start": _row(("-", "sign"), ("0", "zero"), (_NONZERO, "int")),
    "sign": _row(("0", "zero"), (_NONZERO, "int")),
    "zero": _row((".", "point"), ("eE", "e")),
    "int": _row((_DIGITS, "int"), (".", "point"), ("eE", "e")),
    "point": _row((_DIGITS, "fraction")),
    "fraction": _row((_DIGITS, "fraction"), ("eE", "e")),
    "e": _row((_DIGITS, "exponent"), ("+-", "e sign")),
    "e sign": _row((_DIGITS, "exponent")),
    "exponent": _row((_DIGITS, "exponent")),
}
_WHOLE = frozenset(("zero", "int", "fraction", "exponent"))


class NumberReader:
    """A number: it ends before a character that cannot continue it."""

    def __init__(self, max_digits: int) -> None:
        self.ended = False
        self._written = ""  # of bounded length: digits are counted
        self._max_digits = max_digits
        self._digits = 0
        self._state = "start"

    @property
    def value(self) -> int | float:
        return int(self._written) if self._state in ("zero", "int") else float(self._written)

    def close(self) -> bool:
        return self._state in _WHOLE

    def read(self, text: str, at: int) -> int:
        while at < len(text):
            char = text[at]
            state = _NUMBER[self._state].get(char)
            if state is None:
                if self._state not in _WHOLE:
                    raise Refused(at, f"expected the rest of a number, found {found(char)}")
                self.ended = True
                break
            self._take(char, state, at)
            at += 1
        return at

    def _take(self, char: str, state: str, at: int) -> None:
        self._state = state
        self._digits += char in _DIGITS
        self._written += char
        if self._digits > self._max_digits:
            raise Refused(at, f"a number of more than {self._max_digits} digits is too long")
        if state == "exponent" and math.isinf(float(self._written)):  # more digits only make it larger
            raise Refused(at, "a number is outside the range of a float")


class WordReader:
    """true, false or null."""

    def __init__(self, char: str) -> None:
        self.ended = False
        self._word, self.value = _WORDS[char]
        self._known = 0

    def close(self) -> bool:
        return self.ended

    def read(self, text: str, at: int) -> int:
        while at < len(text) and not self.ended:
            if text[at] != self._word[self._known]:
                raise Refused(at, f"expected {self._word}, found {found(text[at])}")
            self._known += 1
            self.ended = self._known == len(self._word)
            at += 1
        return at
