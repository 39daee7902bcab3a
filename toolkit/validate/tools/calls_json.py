"""JSON calls: `{"name": ..., "arguments": {...}}`, alone or in a list, as several formats have them.

In: a source before the object or list.   Out: calls, told to a turn.
Knows nothing about: what stands around them.
Invariants: members other than a name, the arguments and those that are ignored are refused, as are missing ones; the arguments are
an object, and its text is told as the model writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from toolkit.contracts import Json
from toolkit.schema import escape_pointer
from toolkit.validate.json_machine import JsonMachine, Note
from toolkit.validate.tools.source import Fault, Reading, Source
from toolkit.validate.tools.turn import Call, Turn

Members = Mapping[str, Literal["name", "arguments", "ignored"]]
NAME_ARGUMENTS: Members = {"name": "name", "arguments": "arguments"}
NAME_PARAMETERS: Members = {**NAME_ARGUMENTS, "parameters": "arguments", "type": "ignored"}
NAME_ARGUMENTS_ID: Members = {**NAME_ARGUMENTS, "id": "ignored"}


class ArgumentsOnly:
    """Watches the arguments object of a call whose name is known already."""

    def __init__(self, call: Call) -> None:
        self._call, self._from = call, 0

    def start(self, at: int) -> None:
        self._from = at

    def note(self, note: Note, text: str) -> None:
        if not note.path and note.kind == "begin":
            _require_object(text[note.at], "the arguments of a call", "")

    def stop(self, text: str, end: int) -> None:
        self._call.add(text[self._from : end])


class _CallObject:
    """Watches one object with a name and arguments."""

    def __init__(self, call: Call, members: Members) -> None:
        self.arguments: Json = None
        self._call, self._members = call, members
        self._roles: set[str] = set()  # met so far
        self._from: int | None = None  # where the arguments go on in this piece

    def start(self, at: int) -> None:
        self._from = None if self._from is None else at

    def note(self, note: Note, text: str) -> None:
        if not note.path:
            if note.kind == "begin":
                _require_object(text[note.at], "a call", "")
            return
        key = str(note.path[0])
        if note.kind == "key":
            self._meet(key)
        elif self._members[key] == "name" and note.kind == "end":
            self._call.named(_require_name(note.value))
        elif self._members[key] == "arguments" and note.kind == "begin":
            _require_object(text[note.at], key, f"/{key}")
            self._from = note.at
        elif self._members[key] == "arguments" and note.kind == "end":
            self._call.add(text[self._from : note.at])
            self._from, self.arguments = None, note.value

    def stop(self, text: str, end: int) -> None:
        if self._from is not None:
            self._call.add(text[self._from : end])

    def check(self) -> None:
        """Raise Fault where something is missing."""
        for role in ("name", "arguments"):
            if role not in self._roles:
                raise Fault("required", role, f"a call without {role}")

    def _meet(self, key: str) -> None:
        role = self._members.get(key)
        if role is None or (role != "ignored" and role in self._roles):
            allowed = ", ".join(self._members)
            raise Fault(
                "format",
                f"the members {allowed}",
                f"member {key[:40]!r} is not allowed here in a call",
                f"/{escape_pointer(key[:40])}",
            )
        self._roles.add(role)


def read_object(source: Source, turn: Turn, members: Members) -> Reading[tuple[Call, Json]]:
    """One call object, not yet judged."""
    call = turn.call()
    source.keep()
    machine, watcher = JsonMachine(watch=1), _CallObject(call, members)
    yield from source.json(machine, watcher)
    watcher.check()
    return call, watcher.arguments


def read_list(source: Source, turn: Turn, members: Members) -> Reading[None]:
    """A list of call objects; each is judged as it ends."""
    yield from source.expect("[")
    first = yield from source.blank()
    while first != "]":
        call, arguments = yield from read_object(source, turn, members)
        call.end(arguments, source.kept)
        first = yield from source.blank()
        if first != "]":
            yield from source.expect(",")
            yield from source.blank()
            first = ""
    yield from source.expect("]")


def _require_object(char: str, what: str, path: str) -> None:
    if char != "{":
        raise Fault("type", "an object", f"{what} must be an object", path)


def _require_name(value: Json) -> str:
    if not isinstance(value, str):
        raise Fault("type", "a string", "the name of a call must be a string", "/name")
    return value
