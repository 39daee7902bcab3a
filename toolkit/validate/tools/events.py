"""Events: what a tool stream says while a model writes, and what it was in the end.

Knows nothing about: formats, parsing.
Invariants: nothing is taken back. The texts of all Content events joined are the result's content, those of all Reasoning events
its reasoning; the texts of all Arguments events of a call joined are JSON, of the arguments of the call once it is `Called`.
`index` counts the calls as the model wrote them, refused ones included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from toolkit.contracts import Json, Violation


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of a reasoning block, without its tags."""

    text: str


@dataclass(frozen=True, slots=True)
class Calling:
    """A call of an offered tool has begun; whether it is a good one is not known yet."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """The next piece of a call's arguments, as JSON text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that may be run: an offered tool, arguments that its schema allows. `raw` is what the model wrote for it."""

    index: int
    name: str
    arguments: Mapping[str, Json]
    raw: str


@dataclass(frozen=True, slots=True)
class Called:
    """A call has ended and is good."""

    index: int
    call: ToolCall


@dataclass(frozen=True, slots=True)
class Refused:
    """Something is wrong, and why. With an `index` it is a call: it is none, whatever was said about it before."""

    index: int | None
    violations: tuple[Violation, ...]


ToolEvent: TypeAlias = Content | Reasoning | Calling | Arguments | Called | Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """A whole turn. `errors` say why it is not as it should be; calls that are at fault are not among `calls`.

    `last_events` are the events that had to wait for the end of the stream: they come after those of the last `feed`.
    """

    calls: tuple[ToolCall, ...]
    content: str
    reasoning: str
    errors: tuple[Violation, ...]
    last_events: tuple[ToolEvent, ...] = field(default=(), compare=False, repr=False)

    @property
    def valid(self) -> bool:
        return not self.errors
