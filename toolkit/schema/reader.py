"""Reader: strict JSON text to a value, without recursion.

In: text (or UTF-8 bytes) of a bounded size.   Out: the value; on request the span of each of its parts.
Knows nothing about: schemas.
Invariants: whatever is accepted is RFC 8259 JSON, has one reading (no duplicate keys, NaN, infinities, lone surrogates) and
can be written back; whatever is refused is a JsonError with line, column, offset and JSON path; time and memory are linear in the
text, and a deadline of `clock` ends a long one (OutOfTime).
Source: RFC 8259; departures: the limits below, which the RFC leaves to the implementation.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from toolkit.contracts import Json
from toolkit.errors import InputError
from toolkit.schema.clock import seconds_left

MAX_DEPTH = 100  # llguidance's own JSON reader stops at 128
MAX_CHARS = 16 * 1024 * 1024
MAX_DIGITS = 308  # every integer of so many digits is also a finite float (1.8e308)

_TOKEN = re.compile(
    r"""[ \t\n\r]*+(?:
      (?P<string>"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+")
    | (?P<number>-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?)
    | (?P<word>true|false|null)
    | (?P<mark>[\[\]{}:,])
    | (?P<end>\Z))""",
    re.VERBOSE,
)
_LOOK_EVERY = 4096  # tokens between two looks at the clock: about 15 ms
_SURROGATE = re.compile("[\ud800-\udfff]")
_WORDS: dict[str, Json] = {"true": True, "false": False, "null": None}


class JsonError(InputError):
    """A text that is no strict JSON: `offset` of the fault, `path` (JSON pointer) of the value it is in, `why`.

    `where` says the offset in words: line and column of a whole text, the byte of a stream.
    """

    def __init__(self, where: str, offset: int, keys: tuple[str | int, ...], why: str) -> None:
        self.offset, self.keys, self.why = offset, keys, why
        self.path = "".join(f"/{escape_pointer(key)}" for key in keys)
        super().__init__(f"JSON text, {where}{f', at {self.path[:200]}' if keys else ''}: {why}")


class Span(NamedTuple):
    """Where a value lies: [start, end) in characters, and whether it is an object or array."""

    start: int
    end: int
    container: bool


class _Token(NamedTuple):
    kind: str  # string, number, word, end, or the mark itself
    text: str
    start: int
    end: int


class _Expect(Enum):
    """What may come next; the values are the words of the error message."""

    VALUE = "a value"
    FIRST = "a value or ']'"
    KEY = "a string as key"
    FIRST_KEY = "a string as key or '}'"
    COLON = "':'"
    AFTER = "',' or the closing bracket"
    END = "the end of the text"


@dataclass(slots=True)
class _Open:
    """A container that is still being read, and where its next value goes."""

    value: list[Json] | dict[str, Json]
    pointer: str
    start: int
    key: str = ""

    @property
    def closer(self) -> str:
        return "}" if isinstance(self.value, dict) else "]"

    def child(self) -> str:
        return f"{self.pointer}/{escape_pointer(self.key if isinstance(self.value, dict) else len(self.value))}"

    def put(self, value: Json) -> None:
        if isinstance(self.value, dict):
            self.value[self.key] = value
        else:
            self.value.append(value)


def escape_pointer(key: str | int) -> str:
    """One reference token of a JSON pointer (RFC 6901)."""
    return str(key).replace("~", "~0").replace("/", "~1")


def parse_json(
    text: str | bytes, *, max_depth: int = MAX_DEPTH, max_chars: int = MAX_CHARS, max_digits: int = MAX_DIGITS
) -> Json:
    """The value of a JSON text. Raises InputError: a JsonError where the fault has a place."""
    return _Reader(_decoded(text, max_chars), max_depth, max_digits, None).read()


def read_spans(text: str, *, max_depth: int = MAX_DEPTH, max_chars: int = MAX_CHARS) -> dict[str, Span]:
    """JSON pointer of every value of a JSON text -> its span in characters. Raises InputError as `parse_json` does."""
    spans: dict[str, Span] = {}
    _Reader(_decoded(text, max_chars), max_depth, MAX_DIGITS, spans).read()
    return spans


def _decoded(text: str | bytes, max_chars: int) -> str:
    if len(text) > max_chars:
        raise InputError(f"JSON text of {len(text)} characters is too long: at most {max_chars} are read")
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"JSON text is not UTF-8 at byte {error.start}: {error.reason}") from None
    if text.startswith("\ufeff"):
        raise InputError("JSON text starts with a byte order mark (U+FEFF)", hint="save the file as UTF-8 without BOM")
    return text


class _Reader:
    """A pushdown automaton over tokens; `_open` is its stack, so depth costs no Python frames."""

    def __init__(self, text: str, max_depth: int, max_digits: int, spans: dict[str, Span] | None) -> None:
        self._text = text
        self._max_depth = max_depth
        self._max_digits = max_digits
        self._spans = spans
        self._open: list[_Open] = []
        self._root: Json = None
        self._expect = _Expect.VALUE

    def read(self) -> Json:
        for token in self._tokens():
            if self._expect is _Expect.END and token.kind == "end":
                return self._root
            self._expect = self._step(self._expect, token)
        raise AssertionError("the end token is always refused or final")

    def _step(self, expect: _Expect, token: _Token) -> _Expect:
        kind, top = token.kind, self._open[-1] if self._open else None
        if expect in (_Expect.VALUE, _Expect.FIRST):
            if kind in ("{", "["):
                return self._push(token)
            if kind in ("string", "number", "word"):
                return self._finish(self._scalar(token), token.start, token.end, container=False)
        elif expect in (_Expect.KEY, _Expect.FIRST_KEY) and kind == "string":
            return self._set_key(token)
        elif expect is _Expect.COLON and kind == ":":
            return _Expect.VALUE
        elif expect is _Expect.AFTER and kind == "," and top is not None:
            return _Expect.KEY if isinstance(top.value, dict) else _Expect.VALUE
        if expect in (_Expect.AFTER, _Expect.FIRST, _Expect.FIRST_KEY) and top is not None and kind == top.closer:
            self._open.pop()
            return self._finish(top.value, top.start, token.end, container=True)
        found = "the end of the text" if kind == "end" else repr(token.text[:40])
        raise self._fault(token.start, f"expected {expect.value}, found {found}")

    def _push(self, token: _Token) -> _Expect:
        if len(self._open) >= self._max_depth:
            raise self._fault(token.start, f"nested deeper than {self._max_depth} levels")
        pointer = self._open[-1].child() if self._open and self._spans is not None else ""
        self._open.append(_Open({} if token.kind == "{" else [], pointer, token.start))
        return _Expect.FIRST_KEY if token.kind == "{" else _Expect.FIRST

    def _finish(self, value: Json, start: int, end: int, *, container: bool) -> _Expect:
        """Hand a whole value to the container it is in."""
        if self._spans is not None:
            self._spans[self._open[-1].child() if self._open else ""] = Span(start, end, container)
        if not self._open:
            self._root = value
            return _Expect.END
        self._open[-1].put(value)
        return _Expect.AFTER

    def _set_key(self, token: _Token) -> _Expect:
        top = self._open[-1]
        top.key = self._scalar(token)
        if top.key in top.value:
            raise self._fault(token.start, f"key {top.key[:40]!r} comes twice in one object")
        return _Expect.COLON

    def _scalar(self, token: _Token) -> Json:
        if token.kind == "word":
            return _WORDS[token.text]
        if token.kind == "number":
            return self._number(token)
        value: str = json.loads(token.text)
        if _SURROGATE.search(value):
            raise self._fault(token.start, "a string holds half of a surrogate pair, which is no character")
        return value

    def _number(self, token: _Token) -> int | float:
        digits = sum(map(str.isdigit, token.text))
        if digits > self._max_digits:
            raise self._fault(token.start, f"a number of {digits} digits is too long: at most {self._max_digits} are read")
        if token.text.lstrip("-").isdigit():
            return int(token.text)
        value = float(token.text)
        if math.isinf(value):
            raise self._fault(token.start, f"number {token.text[:40]} is outside the range of a float")
        return value

    def _tokens(self) -> Iterator[_Token]:
        at = 0
        for count in itertools.count():
            if count % _LOOK_EVERY == 0:
                seconds_left()
            match = _TOKEN.match(self._text, at)
            if match is None:
                raise self._bad_character(at)
            kind = match.lastgroup or ""
            start, end = match.span(kind)
            text = match.group(kind)
            yield _Token(text if kind == "mark" else kind, text, start, end)
            at = end

    def _bad_character(self, at: int) -> InputError:
        while self._text[at] in " \t\n\r":
            at += 1
        found = self._text[at]
        what = "a string that is not closed, or holds a bad escape or a raw control character" if found == '"' else repr(found)
        return self._fault(at, f"expected JSON, found {what}")

    def _fault(self, at: int, why: str) -> JsonError:
        line = self._text.count("\n", 0, at) + 1
        column = at - self._text.rfind("\n", 0, at)
        return JsonError(f"line {line}, column {column} (offset {at})", at, self._keys(), why)

    def _keys(self) -> tuple[str | int, ...]:
        """Keys from the root to the value that is being read; of an object that waits for a key, to the object."""
        keys = [each.key if isinstance(each.value, dict) else len(each.value) for each in self._open]
        if self._expect in (_Expect.KEY, _Expect.FIRST_KEY):
            keys.pop()
        elif self._expect is _Expect.AFTER and isinstance(keys[-1], int):
            keys[-1] -= 1
        return tuple(keys)
