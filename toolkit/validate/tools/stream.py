"""ToolStream: a model's output while it comes, to text, reasoning and checked tool calls.

In: bytes, cut anywhere; a format, the tools that were offered, and what was asked for.   Out: events, in the end a `ToolResult`.
Knows nothing about: engines, tokens, how a format writes calls.
Invariants: the result, and the events with neighbouring texts joined, are the same for every cut of the stream; nothing is taken
back; time is linear in the stream and memory bounded by it; no text, whatever it holds, raises anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from toolkit.contracts import Violation, require
from toolkit.errors import UsageError
from toolkit.validate.tools.events import ToolEvent, ToolResult
from toolkit.validate.tools.format import ToolFormat
from toolkit.validate.tools.offered import ToolSet
from toolkit.validate.tools.source import Fault, Reading, Source
from toolkit.validate.tools.table import format_named
from toolkit.validate.tools.turn import Turn

ReasoningTags = Literal["tags", "open", "off"]
MOST_BYTES = 16 * 1024 * 1024
MOST_CALLS = 64


def tool_stream(
    format: str,  # noqa: A002 - the word of the command line
    tools: Sequence[Mapping[str, Any]] | ToolSet,
    *,
    choice: str = "auto",
    parallel: int = MOST_CALLS,
    reasoning: ReasoningTags = "tags",
    max_bytes: int = MOST_BYTES,
) -> ToolStream:
    """A stream parser for one turn in a format (`toolkit.validate.tools.table` lists them).

    `tools`: OpenAI-style function schemas. `choice`: "auto", "required", "none", or the name of the tool that must be called.
    `parallel`: the most calls. `reasoning`: "tags" = blocks between <think> tags are reasoning; "open" = as well, and the chat
    template has opened the first one already; "off" = such tags are ordinary text.
    Raises UsageError for an option that is not allowed, SchemaError for a tool's schema.
    """
    offered = ToolSet(tools)
    allowed = ("auto", "required", "none", *offered)
    require(choice in allowed, "tool choice", choice, ", ".join(allowed))
    require(isinstance(parallel, int) and parallel >= 1, "parallel", parallel, "an integer >= 1")
    require(reasoning in get_args(ReasoningTags), "reasoning", reasoning, ", ".join(get_args(ReasoningTags)))
    require(isinstance(max_bytes, int) and max_bytes >= 1, "max_bytes", max_bytes, "an integer >= 1")
    return ToolStream(format_named(format), Turn(offered, choice, parallel), reasoning, max_bytes)


class ToolStream:
    """One turn; `tool_stream` makes it. Not thread-safe: one owner at a time."""

    def __init__(self, format_: ToolFormat, turn: Turn, reasoning: ReasoningTags, max_bytes: int) -> None:
        self._turn, self._source = turn, Source()
        self._room = max_bytes
        self._result: ToolResult | None = None
        self._reading = _turn(format_, self._source, turn, reasoning)
        self._is_over = False

    def feed(self, data: bytes) -> list[ToolEvent]:
        """Read the next bytes: what they say, at once. UsageError for text instead of bytes and after `close`."""
        if self._result is not None:
            raise UsageError("this tool stream is closed", hint="make a new one for each turn")
        if not self._is_over:
            fits = len(data) <= self._room
            self._source.feed(data if fits else data[: self._room], last=not fits)
            self._room -= len(data)
            self._go()
        events, self._turn.events = self._turn.events, []
        return events

    def close(self) -> ToolResult:
        """The stream has ended: the whole turn. `result.errors` says what is wrong with it; a second call gives the same."""
        if self._result is None:
            self._source.feed(b"", last=True)
            self._go()
            if self._room < 0:
                self._turn.blame(None, Violation("", "size", "a shorter text", "more", "the text is longer than may be read"))
            if self._source.bad is not None:
                why = f"byte {self._source.bad} is no UTF-8"
                self._turn.blame(None, Violation("", "utf8", "UTF-8", "another byte", why))
            self._result = self._turn.result()
            self._turn.events = []
        return self._result

    def _go(self) -> None:
        if not self._is_over:
            self._is_over = next(self._reading, _OVER) is _OVER


_OVER = object()


def _turn(format_: ToolFormat, source: Source, turn: Turn, reasoning: ReasoningTags) -> Reading[None]:
    """Read a turn to its end."""
    think = {} if reasoning == "off" else format_.think
    opening, closing = next(iter(format_.think.items())) if reasoning == "open" else ("", "")
    if format_.whole:
        yield from _calls(format_, source, turn, "")
        return
    if opening:
        turn.edge()
        yield from source.blank(turn.reasoning.add)
        yield from source.accept(opening)  # some models write it although the template has
    while True:
        mark = yield from _prose(format_, source, turn, think, closing)
        if mark is None:
            return
        closing = ""
        turn.edge()
        if not (yield from _calls(format_, source, turn, mark)):
            return
        turn.edge()


def _prose(format_: ToolFormat, source: Source, turn: Turn, think: Mapping[str, str], closing: str) -> Reading[str | None]:
    """Text and reasoning up to the next call: the mark it begins with, None where there is none."""
    marks = (*format_.opens, *format_.strays, *format_.ends, *think, *think.values())
    while True:
        if closing:
            turn.edge()
            if not (yield from source.until((closing,), turn.reasoning.add)):
                turn.blame(None, Violation("", "truncated", closing, "the end", "the stream ended inside a reasoning block"))
                return None
            turn.edge()
        if format_.bare and not turn.content.began:
            first = yield from source.blank(turn.content.add)
            if first and first in format_.bare:
                return ""
        mark = yield from source.until(marks, turn.content.add)
        if not mark:
            return None
        if mark in format_.opens:
            return mark
        turn.edge()
        closing = think.get(mark, "")
        if not closing and mark not in format_.ends:
            why = f"byte {source.offset}: {mark} closes nothing"
            turn.blame(None, Violation("", "format", "no closing mark here", mark, why))


def _calls(format_: ToolFormat, source: Source, turn: Turn, mark: str) -> Reading[bool]:
    """Calls, a fault in them included: whether reading can go on after it."""
    try:
        yield from format_.read(source, turn, mark)
    except Fault as fault:
        turn.fault(fault, source.kept)
        source.forget()
        return bool((yield from source.until((format_.resume,) if format_.resume else (), _drop)))
    source.forget()
    return True


def _drop(piece: str) -> None:
    """What follows a fault is nothing."""
