"""Source: the text of a stream, for parsers that are written as if it were all there.

In: bytes, cut anywhere.   Out: what a parser asks for; it is a generator and yields where it has to wait for more.
Knows nothing about: formats.
Invariants: what a parser gets does not depend on the cuts (pieces of one text apart, which it may only join); every character
is looked at a bounded number of times, so the work is linear; a byte that is no UTF-8 is a character in U+DC80..U+DCFF.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import Protocol, TypeAlias, TypeVar

from toolkit.schema import JsonError
from toolkit.validate.json_machine import JsonMachine, Note
from toolkit.validate.utf8 import Utf8, first_byte, size

T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]
SPACE = " \t\n\r"
MOST_NAME = 256  # characters of a tool's or an argument's name
_BLANK = re.compile(f"[{SPACE}]*")


class Fault(Exception):  # noqa: N818 - a signal from a parser to the turn, which makes a record of it
    """The text is not in the format: `keyword` says in which respect, `path` where in a call's JSON."""

    def __init__(self, keyword: str, expected: str, why: str, path: str = "") -> None:
        super().__init__(why)
        self.keyword, self.expected, self.why, self.path = keyword, expected, why, path


class Truncated(Fault):
    """The stream ended where it must not."""

    def __init__(self, expected: str) -> None:
        super().__init__("truncated", expected, f"the stream ended before {expected}")


class Watcher(Protocol):
    """Sees a JSON value while it is read, piece by piece."""

    def start(self, at: int) -> None:
        """A piece begins at an index of the text."""

    def note(self, note: Note, text: str) -> None:
        """What the machine noted in it. May raise Fault."""

    def stop(self, text: str, end: int) -> None:
        """The piece ends before an index."""


class Source:
    """A text that is still coming. `text[at:]` is what is there and not yet consumed."""

    def __init__(self) -> None:
        self.text, self.at, self.ended = "", 0, False
        self.bad: int | None = None  # offset of the first byte that is no UTF-8
        self.work = 0  # characters looked at, as a test counts them
        self.offset = 0  # bytes consumed so far, kept as they are: faults are many, and each says where it is
        self._utf8 = Utf8()
        self._kept: list[str] | None = None

    def feed(self, data: bytes, *, last: bool = False) -> None:
        """More bytes; with `last` there will be none after them."""
        more = self._utf8.text(data, last=last)
        self.text, self.at, self.ended = self.text[self.at :] + more, 0, last
        bad = first_byte(more) if self.bad is None else None
        if bad is not None:
            self.bad = self.offset + size(self.text[: len(self.text) - len(more) + bad])
        self.work += len(self.text)

    def keep(self) -> None:
        """Remember what is consumed from here on, for `kept`."""
        self._kept = []

    @property
    def kept(self) -> str:
        """What was consumed since `keep`."""
        return "".join(self._kept or ())

    def forget(self) -> None:
        """Remember nothing any more."""
        self._kept = None

    def take(self, end: int) -> str:
        """Consume up to an index."""
        piece = self.text[self.at : end]
        if self._kept is not None:
            self._kept.append(piece)
        self.at = end
        self.offset += size(piece)
        return piece

    def peek(self) -> Reading[str]:
        """The next character, not consumed; "" at the end of the stream."""
        while self.at == len(self.text) and not self.ended:
            yield
        return self.text[self.at : self.at + 1]

    def blank(self, give: Callable[[str], None] | None = None) -> Reading[str]:
        """Consume white space, into `give` if it is wanted; the character after it as `peek` has it."""
        while True:
            match = _BLANK.match(self.text, self.at)
            piece = self.take(match.end() if match else self.at)
            if give is not None and piece:
                give(piece)
            if self.at < len(self.text) or self.ended:
                return self.text[self.at : self.at + 1]
            yield

    def accept(self, literal: str) -> Reading[bool]:
        """Consume `literal` if it comes next."""
        while True:
            there = self.text[self.at : self.at + len(literal)]
            if there == literal:
                self.take(self.at + len(literal))
                return True
            if self.ended or not literal.startswith(there):
                return False
            yield

    def expect(self, literal: str) -> Reading[None]:
        """Consume `literal`. Raises Fault where something else comes, Truncated where the stream ends in it."""
        if not (yield from self.accept(literal)):
            if self.ended and literal.startswith(self.text[self.at :]):
                raise Truncated(repr(literal))
            raise self.surprise(repr(literal))

    def surprise(self, expected: str) -> Fault:
        """The fault that something else than `expected` comes next, or nothing."""
        if self.at == len(self.text):
            return Truncated(expected)
        return Fault("format", expected, f"byte {self.offset}: expected {expected}, found {self.text[self.at]!r}")

    def until(self, marks: tuple[str, ...], give: Callable[[str], None]) -> Reading[str]:
        """Give all text before the first of `marks`, consume and return that; "" where the stream ends first, without marks all of it.

        `give` raises nothing: how much of the text it has got by then depends on the cuts.
        """
        pattern, longest, firsts = _marks(marks)
        while True:
            found = pattern.search(self.text, self.at)
            if found is not None:
                _give(give, self.take(found.start()))
                return self.take(found.end())
            _give(give, self.take(len(self.text) if self.ended else self._safe(marks, longest, firsts)))
            if self.ended:
                return ""
            yield

    def name(self, marks: tuple[str, ...], what: str) -> Reading[tuple[str, str]]:
        """A short text, consumed with the mark that ended it, and which of `marks` that was."""
        pattern, longest, _ = _marks(marks)
        while True:
            end = min(len(self.text), self.at + MOST_NAME + longest)  # a mark behind that is of no use
            self.work += end - self.at
            found = pattern.search(self.text, self.at, end)
            if found is not None and found.start() - self.at <= MOST_NAME:
                break
            if len(self.text) - self.at > MOST_NAME + longest:
                self.take(self.at + MOST_NAME)
                raise Fault("format", what, f"byte {self.offset}: {what} is longer than {MOST_NAME} characters")
            if self.ended:
                raise Truncated(f"the end of {what}")
            yield
        name = self.take(found.start())
        if first_byte(name) is not None:
            raise Fault("utf8", "UTF-8", f"byte {self.offset}: before it, {what} holds a byte that is no UTF-8")
        return name, self.take(found.end())

    def json(self, machine: JsonMachine, watcher: Watcher) -> Reading[None]:
        """Let `machine` read a value that ends by itself, and `watcher` see it."""
        while True:
            start, end, fault = self.at, len(self.text), None
            watcher.start(start)
            try:
                end = machine.push(self.text, start)
            except JsonError as error:
                fault, end = error, error.offset
            for note in machine.notes:
                try:
                    watcher.note(note, self.text)
                except Fault:
                    self.take(note.at)
                    raise
            watcher.stop(self.text, end)
            self.take(end)
            if fault is not None:
                raise Fault("json", "strict JSON", f"byte {self.offset}: {fault.why}", fault.path)
            if machine.done:
                return
            if self.ended:
                raise Truncated("the end of a JSON value")
            yield

    def _safe(self, marks: tuple[str, ...], longest: int, firsts: str) -> int:
        """Index from which on the text could be the beginning of a mark."""
        for at in range(max(self.at, len(self.text) - longest + 1), len(self.text)):
            self.work += 1
            if self.text[at] in firsts and any(mark.startswith(self.text[at:]) for mark in marks):
                return at
        return len(self.text)


def _give(give: Callable[[str], None], piece: str) -> None:
    if piece:
        give(piece)


@lru_cache(maxsize=256)
def _marks(marks: tuple[str, ...]) -> tuple[re.Pattern[str], int, str]:
    pattern = re.compile("|".join(map(re.escape, marks)) or "(?!)")
    return pattern, max(map(len, marks), default=1), "".join({mark[0] for mark in marks})
