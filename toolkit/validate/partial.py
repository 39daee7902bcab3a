"""Partial: how much of a JSON value is there.

In: a machine that reads the value.   Out: a tree of `missing | partial | complete`.
Knows nothing about: bytes, where the text comes from.
Invariants: monotone - a later tree never takes anything back: states go from missing over partial to complete, a partial
string only grows, a complete value stays as it is. A partial number or word has no value yet: 12 may become 123.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from toolkit.contracts import Json
from toolkit.validate.json_machine import JsonMachine
from toolkit.validate.json_scalars import StringReader
from toolkit.validate.outline import Outline

State = Literal["missing", "partial", "complete"]


@dataclass(frozen=True, slots=True)
class Partial:
    """One value: its state, what there is of it, and - of an object or array - its members.

    `value` holds what has come, members that have not excepted. `fields` of an object also lists, as missing, the names of the
    schema's `properties` that have not come; where the object is complete, they will not.
    """

    state: State
    value: Json = None
    fields: Mapping[str | int, Partial] = field(default_factory=dict)


_MISSING = Partial("missing")


def partial_of(machine: JsonMachine, outline: Outline | None) -> Partial:
    """The tree of what the machine has read. Members of complete containers are shared with the machine, not copied."""
    return whole(machine.value, outline) if machine.done else _open(machine, 0, outline)


def whole(value: Json, outline: Outline | None = None) -> Partial:
    """The tree of a value that is complete."""
    if not isinstance(value, dict | list):
        return Partial("complete", value)
    members = {key: whole(each, _below(outline, key)) for key, each in _pairs(value)}
    return Partial("complete", value, members | _missing(value, members, outline))


def _open(machine: JsonMachine, depth: int, outline: Outline | None) -> Partial:
    """What is being read at a depth of the stack."""
    if depth == len(machine.frames):
        scalar = machine.scalar
        if scalar is None:
            return _MISSING
        return Partial("partial", scalar.value if isinstance(scalar, StringReader) else None)
    frame = machine.frames[depth]
    members = {key: whole(each, _below(outline, key)) for key, each in _pairs(frame.value)}
    if frame.key is not None and frame.key not in members:
        last = _open(machine, depth + 1, _below(outline, frame.key))
        if last.state == "partial":
            members[frame.key] = last
    shown = {key: each.value for key, each in members.items() if each.state == "complete" or each.value is not None}
    value = shown if isinstance(frame.value, dict) else list(shown.values())
    return Partial("partial", value, members | _missing(value, members, outline))


def _pairs(value: dict[str, Json] | list[Json]) -> Iterable[tuple[str | int, Json]]:
    return value.items() if isinstance(value, dict) else enumerate(value)


def _missing(value: Json, members: Container[str | int], outline: Outline | None) -> dict[str | int, Partial]:
    names = outline.names if outline is not None and isinstance(value, dict) else ()
    return {name: _MISSING for name in names if name not in members}


def _below(outline: Outline | None, key: str | int) -> Outline | None:
    return None if outline is None else outline.child(key)
