"""ToolFormat: how a model family writes tool calls; one file and one row of `table.py` each.

In: a source after the mark that opens calls.   Out: calls, told to a turn; and back: a call as text, a grammar of calls.
Knows nothing about: streams, choices, judgement.
Invariants: what `write` writes, `read` reads back as the same call; a text of `grammar` is always read as good calls. No mark
begins inside another, so that the first one in a text is the same however it is cut.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from toolkit.contracts import Json
from toolkit.errors import UnsupportedError
from toolkit.validate.tools.offered import ToolSet
from toolkit.validate.tools.source import Reading, Source
from toolkit.validate.tools.turn import Turn

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}")


class ToolFormat(ABC):
    """One format. All marks are literal text."""

    name: ClassVar[str]
    signs: ClassVar[tuple[str, ...]]  # what a chat template of this format holds, all of them
    whole: ClassVar[bool] = False  # everything is in the format: there is no prose around it
    opens: ClassVar[tuple[str, ...]] = ()  # marks that calls begin with
    bare: ClassVar[str] = ""  # characters that calls begin with where there is no content before them
    resume: ClassVar[str] = ""  # mark after which reading goes on when a call was at fault ("" = it does not)
    strays: ClassVar[tuple[str, ...]] = ()  # marks that are an error outside a call, and no content
    ends: ClassVar[tuple[str, ...]] = ()  # marks of the end of a turn, which say nothing
    think: ClassVar[Mapping[str, str]] = {"<think>": "</think>"}  # what opens a reasoning block -> what closes it

    @abstractmethod
    def read(self, source: Source, turn: Turn, mark: str) -> Reading[None]:
        """Read the calls after `mark` (one of `opens`, or "" for `bare`). Raises Fault."""

    # The other way: one call is frame[0] + its body + frame[1]; bodies of one turn are joined by `between`.
    frame: ClassVar[tuple[str, str]]
    between: ClassVar[str]

    @abstractmethod
    def body(self, name: str, arguments: Mapping[str, Json]) -> str:
        """One call as text, without its frame."""

    def write(self, *calls: tuple[str, Mapping[str, Json]]) -> str:
        """Calls as the model writes them; "" for none."""
        bodies = [self.body(checked_name(name), arguments) for name, arguments in calls]
        return self.frame[0] + self.between.join(bodies) + self.frame[1] if bodies else ""

    @abstractmethod
    def rules(self, tools: ToolSet) -> str:
        """Lark rules of llguidance, of which `call` is the body of one call."""

    def schema(self, tools: ToolSet) -> Json | None:
        """Where the body of a call is JSON: its schema."""
        return None

    def partial(self, tools: ToolSet) -> tuple[str, ...]:
        """What the schemas of the tools say and `rules` do not."""
        return ()


class JsonBodied(ToolFormat):
    """A format in which the body of a call is an object with a name and arguments."""

    arguments: ClassVar[str] = "arguments"  # what the second member is called

    def body(self, name: str, arguments: Mapping[str, Json]) -> str:
        return compact({"name": name, self.arguments: arguments})

    def schema(self, tools: ToolSet) -> Json:
        return tools.call_schema(self.arguments)

    def rules(self, tools: ToolSet) -> str:
        return f"call: {schema_rule(self.schema(tools))}"


def checked_name(name: str) -> str:
    """A name that no format's marks can be in. Raises UnsupportedError for any other."""
    if not _PLAIN_NAME.fullmatch(name):
        raise UnsupportedError(
            f"tool or argument name {name[:80]!r} cannot be written: letters, digits, _ . : / - only, at most 128"
        )
    return name


def compact(value: Json) -> str:
    """JSON as grammars of this project write it: no white space, characters as themselves."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def schema_rule(schema: Json) -> str:
    """A schema inside a Lark grammar: strict, compact, and deaf to options that the schema itself may hold."""
    options = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
    return "%json " + json.dumps({**{key: each for key, each in schema.items() if key != "$schema"}, "x-guidance": options})


def literal(text: str) -> str:
    """A text as a Lark string."""
    return json.dumps(text)
