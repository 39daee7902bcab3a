"""OpenAI: an assistant's message object, as a server of the Chat Completions API answers with it.

`content`, `reasoning_content` (or `reasoning`) and `tool_calls` are read; other members are the server's business, but for a call in
`function_call`, as servers answered before there were tools: it is refused, for it would be lost.
The arguments of a call are a JSON text inside a string; one that is no strict JSON object spoils its call, not the message.
"""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.contracts import Json
from toolkit.errors import UnsupportedError
from toolkit.schema import JsonError
from toolkit.validate.json_machine import JsonMachine, Note
from toolkit.validate.tools.format import ToolFormat, compact
from toolkit.validate.tools.offered import ToolSet
from toolkit.validate.tools.source import SPACE, Fault, Reading, Source
from toolkit.validate.tools.turn import Call, Turn

_PROSE = {"content": "content", "reasoning_content": "reasoning", "reasoning": "reasoning"}
_CALL_DEPTH = 4  # ("tool_calls", index, "function", "name" or "arguments")


class OpenAi(ToolFormat):
    name = "openai"
    signs = ()
    whole = True
    frame = ('{"role":"assistant","content":null,"tool_calls":[', "]}")
    between = ","

    def read(self, source: Source, turn: Turn, mark: str) -> Reading[None]:
        yield from source.blank()
        yield from source.json(JsonMachine(watch=_CALL_DEPTH), _Message(turn))
        if (yield from source.blank()):
            raise source.surprise("the end of the message")

    def body(self, name: str, arguments: Mapping[str, Json]) -> str:
        return compact({"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": compact(arguments)}})

    def rules(self, tools: ToolSet) -> str:
        raise UnsupportedError("format openai has no grammar: a server writes message objects, no model does", hint="use json")


class _Message:
    """Watches the message object."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._open: _OpenCall | None = None
        self._reasoning = ""  # the member that it is read from

    def start(self, at: int) -> None: ...

    def stop(self, text: str, end: int) -> None: ...

    def note(self, note: Note, text: str) -> None:
        path, first = note.path, text[note.at] if note.kind == "begin" else ""
        if not path:
            self._root(note, first)
        elif path[0] in _PROSE and len(path) == 1:
            self._prose(str(path[0]), note, first)
        elif path[0] == "function_call" and len(path) == 1:
            _check(first, "n", "null: calls are read from tool_calls", "function_call")
        elif path[0] == "tool_calls" and len(path) == 1:
            _check(first, "[n", "a list or null", "tool_calls")
        elif path[0] == "tool_calls" and len(path) == 2:
            self._call(note, first)
        elif path[0] == "tool_calls" and path[2] == "function" and self._open is not None:
            self._function(self._open, note, first)

    def _root(self, note: Note, first: str) -> None:
        _check(first, "{", "a message object", "")
        if note.kind == "end" and not {"content", "tool_calls"} & note.value.keys():
            raise Fault("required", "content or tool_calls", "an object without content and tool_calls is no message")

    def _prose(self, key: str, note: Note, first: str) -> None:
        _check(first, '"n', "a string or null", key)
        if note.kind == "text" and _PROSE[key] == "content":
            self._turn.content.exact(note.value)
        elif note.kind == "text":
            self._reasoning = self._reasoning or key
            if key == self._reasoning:  # some servers send it under both names
                self._turn.reasoning.exact(note.value)

    def _call(self, note: Note, first: str) -> None:
        if note.kind == "begin":
            self._open = _OpenCall(self._turn.call())
            _check(first, "{", "an object", "")
        elif note.kind == "end" and self._open is not None:
            fault = self._open.fault()
            if fault is not None:
                self._turn.fault(fault, "".join(self._open.raw))
            else:
                self._open.call.end(self._open.inner.value, "".join(self._open.raw))
            self._open = None

    def _function(self, open_: _OpenCall, note: Note, first: str) -> None:
        key = str(note.path[-1])
        if len(note.path) == 3:
            _check(first, "{", "an object", "function")
        elif key in ("name", "arguments"):
            _check(first, '"', "a string", f"function/{key}")
            if note.kind == "end":
                open_.seen.add(key)
            if key == "name" and note.kind == "end":
                open_.call.named(note.value)
            if key == "arguments" and note.kind == "text":
                open_.add(note.value)


class _OpenCall:
    """A call in the making: its arguments are JSON of their own."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.seen: set[str] = set()  # of name and arguments
        self.inner = JsonMachine()
        self.raw: list[str] = []
        self._spoilt: Fault | None = None

    def add(self, piece: str) -> None:
        self.raw.append(piece)
        if self._spoilt is not None:
            return
        end = len(piece)
        try:
            end = self.inner.push(piece)
        except JsonError as error:
            end = error.offset
            self._spoilt = _spoilt(error.why, error.path)
        self.call.add(piece[:end])
        if self._spoilt is None and piece[end:].strip(SPACE):
            self._spoilt = _spoilt("something follows the arguments")

    def fault(self) -> Fault | None:
        """What is wrong with it, once it has ended."""
        for key in ("name", "arguments"):
            if key not in self.seen:
                return Fault("required", key, f"a call without {key}", "/function")
        if self._spoilt is None and not self.inner.done:
            return _spoilt("the arguments are cut off")
        if self._spoilt is None and not isinstance(self.inner.value, dict):
            return Fault("type", "an object", "the arguments are no object", "/function/arguments")
        return self._spoilt


def _spoilt(why: str, path: str = "") -> Fault:
    return Fault("json", "strict JSON", why, "/function/arguments" + path)


def _check(first: str, allowed: str, expected: str, where: str) -> None:
    """Refuse a value by its first character ("" where it is not its beginning)."""
    if first and first not in allowed:
        raise Fault("type", expected, f"{where or 'the value'} must be {expected}", where and f"/{where}")
