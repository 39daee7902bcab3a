"""JsonMachine: strict JSON, one piece of text after another, refused at the first character that cannot lead to a value.

In: pieces of text, cut anywhere.   Out: the value; on request notes of where its parts begin, grow and end.
Knows nothing about: bytes, schemas, what the value is for.
Invariants: the same verdict as `toolkit.schema.parse_json` on the whole text, and the same value; time is linear in the text
and depth costs no Python frames; however the text is cut, the value, the notes' texts in concatenation and the place of a
fault are the same.
Source: RFC 8259, with the limits of `toolkit.schema.reader`. A character in U+DC80..U+DCFF stands for a byte that is no UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from toolkit.contracts import Json
from toolkit.schema import MAX_DEPTH, MAX_DIGITS
from toolkit.schema import JsonError as JsonError
from toolkit.validate.json_scalars import STARTS, Refused, Scalar, StringReader, found, scalar_of

Path: TypeAlias = tuple[str | int, ...]
Kind: TypeAlias = Literal["begin", "text", "end", "key"]
_SPACE = re.compile(r"[ \t\n\r]*")


class Note(NamedTuple):
    """A value began, a string grew by `value`, a value ended as `value`, or a key ended (the last of `path`).

    `at` is an index into the piece just pushed: of the first character (begin, text), of the last one (key), or the index
    after the value (end; a number's is that of the character that ended it).
    """

    kind: Kind
    path: Path
    at: int
    value: Json = None


@dataclass(slots=True)
class Frame:
    """A container that is still open, and the place of the value that is being read or came last (None: before a key)."""

    value: list[Json] | dict[str, Json]
    key: str | int | None


class JsonMachine:
    """One JSON value in the making. `watch`: notes are taken of values down to that depth (the root is 0; -1 = none)."""

    def __init__(self, *, watch: int = -1, max_depth: int = MAX_DEPTH, max_digits: int = MAX_DIGITS) -> None:
        self.done = False
        self.value: Json = None
        self.notes: list[Note] = []
        self.frames: list[Frame] = []
        self.scalar: Scalar | None = None  # a value that is being read, keys excepted
        self._key: StringReader | None = None
        self._watch, self._max_depth, self._max_digits = watch, max_depth, max_digits
        self._step: Callable[[str, int], int] = self._value
        self._expected = "a value"

    @property
    def path(self) -> Path:
        """Keys from the root to the value that is being read or came last."""
        return tuple(frame.key for frame in self.frames if frame.key is not None)

    @property
    def in_text(self) -> bool:
        """Whether a character beyond ASCII may come next: inside a string, not in an escape."""
        reader = self._key or self.scalar
        return isinstance(reader, StringReader) and reader.in_text

    def push(self, text: str, at: int = 0) -> int:
        """Read text[at:] up to the end of the value; the index where it stopped. `notes` then holds this push's notes.

        Raises JsonError with the index of the culprit; the machine is of no use after that.
        """
        self.notes = []
        try:
            while at < len(text) and not self.done:
                at = self._step(text, at)
        except Refused as refused:
            raise JsonError(f"character {refused.at}", refused.at, self.path, refused.why) from None
        return at

    def close(self) -> Json:
        """The text has ended: the value. Raises JsonError (offset 0 = the end) where it is not whole."""
        self.notes = []
        if self.scalar is not None and not self.frames and self.scalar.close():
            self._finish(self.scalar.value, 0)
        if not self.done:
            what = "the rest of a value" if self.scalar else "the rest of a key" if self._key else self._expected
            raise JsonError("at its end", 0, self.path, f"expected {what}, found the end of the text")
        return self.value

    def _go(self, step: Callable[[str, int], int], expected: str) -> None:
        self._step, self._expected = step, expected

    def _value(self, text: str, at: int) -> int:
        at, char = _next(text, at)
        if char in ("{", "["):
            return self._open(at, char)
        if char not in STARTS or not char:
            return self._other(at, char)
        self._note("begin", at)
        self.scalar = scalar_of(char, self._max_digits)
        self._step = self._in_scalar
        return at

    def _in_scalar(self, text: str, at: int) -> int:
        scalar = self.scalar
        assert scalar is not None
        try:
            end = scalar.read(text, at)
        finally:  # what was read before a refusal was read
            if isinstance(scalar, StringReader) and len(self.frames) <= self._watch:
                path = self.path
                self.notes += [Note("text", path, place, piece) for place, piece in scalar.grown]
        return self._finish(scalar.value, end) if scalar.ended else end

    def _in_key(self, text: str, at: int) -> int:
        key = self._key
        assert key is not None
        at = key.read(text, at)
        if key.ended:
            frame = self.frames[-1]
            if key.value in frame.value:
                raise Refused(at - 1, f"key {key.value[:40]!r} comes twice in one object")
            frame.key, self._key = key.value, None
            self._go(self._colon, "':'")
            self._note("key", at - 1)
        return at

    def _member(self, text: str, at: int) -> int:
        at, char = _next(text, at)
        if char == "}" and not self.frames[-1].value:
            return self._close(at)
        if char != '"':
            return self._other(at, char)
        self._key, self._step = StringReader(), self._in_key
        return at

    def _later_member(self, text: str, at: int) -> int:
        at, char = _next(text, at)
        return self._member(text, at) if char == '"' else self._other(at, char)

    def _item(self, text: str, at: int) -> int:
        at, char = _next(text, at)
        if char == "]":
            return self._close(at)
        if char:
            self.frames[-1].key = 0
            self._go(self._value, "a value or ']'")
        return at

    def _colon(self, text: str, at: int) -> int:
        at, char = _next(text, at)
        if char != ":":
            return self._other(at, char)
        self._go(self._value, "a value")
        return at + 1

    def _after(self, text: str, at: int) -> int:
        at, char = _next(text, at)
        top = self.frames[-1]
        is_object = isinstance(top.value, dict)
        if char == ("}" if is_object else "]"):
            return self._close(at)
        if char != ",":
            return self._other(at, char)
        top.key = None if is_object else len(top.value)
        self._go(*((self._later_member, "a string as key") if is_object else (self._value, "a value")))
        return at + 1

    def _open(self, at: int, char: str) -> int:
        if len(self.frames) >= self._max_depth:
            raise Refused(at, f"nested deeper than {self._max_depth} levels")
        self._note("begin", at)
        self.frames.append(Frame({} if char == "{" else [], None))
        self._go(*((self._member, "a string as key or '}'") if char == "{" else (self._item, "a value or ']'")))
        return at + 1

    def _close(self, at: int) -> int:
        return self._finish(self.frames.pop().value, at + 1)

    def _finish(self, value: Json, at: int) -> int:
        """A value is whole; `at` is the index after it."""
        self.scalar = None
        if not self.frames:
            self.value, self.done = value, True
        else:
            frame = self.frames[-1]
            if isinstance(frame.value, dict):
                frame.value[str(frame.key)] = value
            else:
                frame.value.append(value)
            self._go(self._after, "',' or the closing bracket")
        self._note("end", at, value)
        return at

    def _note(self, kind: Kind, at: int, value: Json = None) -> None:
        if len(self.frames) <= self._watch:
            self.notes.append(Note(kind, self.path, at, value))

    def _other(self, at: int, char: str) -> int:
        """Refuse a character; "" is none: the piece ended, reading goes on with the next one."""
        if char:
            raise Refused(at, f"expected {self._expected}, found {found(char)}")
        return at


def _next(text: str, at: int) -> tuple[int, str]:
    """Index and value of the next character that is no white space; "" where the piece ends first."""
    match = _SPACE.match(text, at)
    at = match.end() if match else at
    return at, text[at : at + 1]
