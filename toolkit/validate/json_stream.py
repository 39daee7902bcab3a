"""JsonStream: one JSON value out of a stream of bytes, refused at the first byte that cannot lead to a valid one.

In: pieces of bytes, cut anywhere, and a schema if there is one.   Out: events as they come, a tree of what is there, the value.
Knows nothing about: tools, tokens, engines.
Invariants: the verdict over JSON is that of `toolkit.schema.parse_json`, the last word over the schema that of
`SchemaJudge`; what is refused early would have been refused in the end; events are never taken back, and are, texts joined,
the same for every cut of the stream. Early are: syntax, types, unknown names, listed strings, lengths, every scalar as it ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from toolkit.contracts import Json
from toolkit.errors import UsageError
from toolkit.schema import MAX_CHARS, MAX_DEPTH, JsonError, checked_schema
from toolkit.validate.json_machine import JsonMachine, Path
from toolkit.validate.partial import Partial, partial_of
from toolkit.validate.utf8 import Utf8, size

if TYPE_CHECKING:
    from toolkit.validate.early import EarlyJudge
    from toolkit.validate.judge import SchemaJudge

CHECK_SECONDS = 1.0
_SPACE = " \t\n\r"


@dataclass(frozen=True, slots=True)
class JsonEvent:
    """At `path` (keys from the root) a value began, a string grew by `value`, or a value ended as `value`."""

    kind: Literal["begin", "text", "end"]
    path: Path
    value: Json = None


class JsonStream:
    """Reads one value. After a refusal the stream is spent: to go on from earlier bytes, feed them to a fresh one."""

    def __init__(self, schema: Json | None = None, *, max_depth: int = MAX_DEPTH, max_bytes: int = MAX_CHARS) -> None:
        """`schema` None allows every JSON value. Raises SchemaError for a schema that is none."""
        self._machine = JsonMachine(watch=max_depth, max_depth=max_depth)
        self._utf8, self._max_depth, self._max_bytes = Utf8(), max_depth, max_bytes
        self._offset = 0  # bytes of the text that was read
        self._spent = False
        self._early: EarlyJudge | None = None
        self._judge: SchemaJudge | None = None
        if schema is not None:
            from toolkit.validate.early import EarlyJudge
            from toolkit.validate.judge import SchemaJudge
            from toolkit.validate.outline import Outline

            checked = checked_schema(schema)
            self._judge = SchemaJudge(checked, CHECK_SECONDS)
            self._early = EarlyJudge(Outline.of(checked), self._judge)

    def again(self) -> JsonStream:
        """A fresh stream of the same schema and limits; the schema is not checked and prepared again."""
        from toolkit.validate.early import EarlyJudge

        fresh = JsonStream(max_depth=self._max_depth, max_bytes=self._max_bytes)
        if self._judge is not None and self._early is not None:
            fresh._judge, fresh._early = self._judge, EarlyJudge(self._early.outline, self._judge)
        return fresh

    @property
    def is_complete(self) -> bool:
        """Whether the value has ended; a number at the root only ends with white space or the stream."""
        return self._machine.done

    @property
    def value(self) -> Json:
        """The value once it `is_complete`, None before."""
        return self._machine.value

    def partial(self) -> Partial:
        """What is there by now, in time linear in it."""
        return partial_of(self._machine, self._early.outline if self._early else None)

    def feed(self, data: bytes) -> list[JsonEvent]:
        """Read the next bytes. Raises JsonError with the offset, from the stream's first byte on, of the first bad one."""
        events = self._read(self._utf8.text(data))
        if self._utf8.is_inside and not self._machine.in_text:
            raise self._refusal("", 0, self._machine.path, "expected JSON, found a character beyond ASCII outside a string")
        return events

    def close(self) -> Json:
        """The stream has ended: the value. Raises JsonError where it is not whole or the schema does not allow it."""
        self._read(self._utf8.text(b"", last=True))
        try:
            value = self._machine.close()
        except JsonError as fault:
            raise self._refusal("", 0, fault.keys, fault.why) from None
        for each in self._judge.violations(value, 1) if self._judge else ():
            raise self._refusal("", 0, (), f"{each.keyword} at {each.path or 'the root'}: {each.message}")
        return value

    def _read(self, text: str) -> list[JsonEvent]:
        if self._spent:
            raise UsageError("this JSON stream has refused its text", hint="feed what was good to a new JsonStream")
        room = self._max_bytes - self._offset
        if len(text) > room or size(text) > room:
            raise self._refusal("", 0, (), f"the text is longer than {self._max_bytes} bytes")
        events, fault, end = [], None, 0
        try:
            end = self._machine.push(text)
        except JsonError as refused:
            fault = refused
        for note in self._machine.notes:
            found = self._early.violation(note, text) if self._early else None
            if found is not None:
                raise self._refusal(text, found[0], note.path, found[1])
            if note.kind != "key":
                events.append(JsonEvent(note.kind, note.path, note.value))
        if fault is not None:
            raise self._refusal(text, fault.offset, fault.keys, fault.why)
        rest = text[end:].lstrip(_SPACE)
        if rest:
            raise self._refusal(text, len(text) - len(rest), (), "expected the end of the text after the value")
        self._offset += size(text)
        return events

    def _refusal(self, text: str, at: int, keys: Path, why: str) -> JsonError:
        self._spent = True
        offset = self._offset + size(text[:at])
        return JsonError(f"byte {offset}", offset, keys, why)
