"""Readers: the kinds of text that can be watched, one class a kind and one row in READERS.

In: a Watch once, then bytes as they come, or a whole text.   Out: a Violation or None; a Report.
Knows nothing about: tokens, engines.
Invariants: a reader's refusal is sound: no text that begins so is valid; `report` parses from scratch: JSON and code with another
parser than the reader's, a turn of tool calls with the same one, in one piece.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Protocol

from toolkit.contracts import Grammar, Json, Report, Violation, Watch
from toolkit.errors import InputError, SchemaError
from toolkit.plugins import Table
from toolkit.schema import deadline, parse_json, schema_of
from toolkit.validate.check import Validator
from toolkit.validate.json_machine import JsonError
from toolkit.validate.json_stream import JsonStream
from toolkit.validate.tools.events import Refused
from toolkit.validate.tools.offered import ToolSet
from toolkit.validate.tools.stream import ToolStream, tool_stream
from toolkit.validate.tools.turn import TURN_SECONDS

READERS = Table(
    "watch kind",
    {
        "json": "toolkit.engine.readers:JsonKind",
        "tools": "toolkit.engine.readers:ToolsKind",
        "code": "toolkit.engine.code_reader:CodeKind",
    },
)


class Reader(Protocol):
    """Reads one text."""

    def feed(self, data: bytes) -> Violation | None:
        """What makes the text, these bytes added, impossible to be continued to a valid one. Not to be fed after that."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing that could follow would change what the text is: one that was cut off here lacks nothing."""


class JsonKind:
    """One JSON value."""

    def __init__(self, watch: Watch) -> None:
        source = watch.schema if watch.schema is not None else "{}"
        self._stream = JsonStream(schema_of(source))
        self._validator = Validator(Grammar("json_schema", source, watch.python_type))

    def report(self, text: str) -> Report:
        return self._validator.check(text)

    def reader(self) -> Reader:
        return _JsonReader(self._stream.again())


class _JsonReader:
    def __init__(self, stream: JsonStream) -> None:
        self._stream = stream

    def feed(self, data: bytes) -> Violation | None:
        try:
            self._stream.feed(data)
        except JsonError as error:
            return Violation(error.path, "json", "a value that the schema allows", f"byte {error.offset}", error.why)
        return None

    @property
    def is_whole(self) -> bool:
        return self._stream.is_complete  # a number at the root may go on


class ToolsKind:
    """A turn with tool calls."""

    def __init__(self, watch: Watch) -> None:
        try:
            tools = parse_json(watch.tools)
        except InputError as error:
            raise SchemaError(f"the tools of a watch are no JSON: {error.message}", keyword="tools") from None
        if not isinstance(tools, list) or not tools:
            raise SchemaError("the tools of a watch must be a JSON list of functions", keyword="tools")
        self._tools = ToolSet(tools)
        self._open = partial(
            tool_stream, watch.format, self._tools, choice=watch.choice, parallel=watch.parallel, reasoning=watch.reasoning
        )
        self._open()  # refuses here what it would refuse later

    def report(self, text: str) -> Report:
        """The turn read anew in one piece, every argument judged once more; its value is content, reasoning and calls."""
        stream = self._open()
        stream.feed(text.encode("utf-8", "surrogatepass"))  # half a pair is no UTF-8, and said to be none
        result = stream.close()
        violations = list(result.errors)
        calls: list[Json] = []
        with deadline(TURN_SECONDS):
            for index, call in enumerate(result.calls):
                calls.append({"name": call.name, "arguments": dict(call.arguments)})
                for each in self._tools[call.name].violations(dict(call.arguments)):
                    violations.append(replace(each, path=f"/calls/{index}/arguments{each.path}"))
        return Report({"content": result.content, "reasoning": result.reasoning, "calls": calls}, tuple(violations))

    def reader(self) -> Reader:
        return _ToolsReader(self._open())


class _ToolsReader:
    def __init__(self, stream: ToolStream) -> None:
        self._stream = stream

    def feed(self, data: bytes) -> Violation | None:
        refused = (event for event in self._stream.feed(data) if isinstance(event, Refused))
        return next((event.violations[0] for event in refused if event.violations), None)

    @property
    def is_whole(self) -> bool:
        return False  # another call may follow
