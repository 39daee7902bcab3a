"""Turn: what a parser finds in a model's output, to events and to a result.

In: texts, reasoning, calls and faults, in the order of the output.   Out: events at once, a `ToolResult` in the end.
Knows nothing about: how a format writes calls.
Invariants: see `events`; calls that there was no time to judge are `undecided`, and so no calls. White space that touches a call or a reasoning block is its frame: it is content only where content
follows it and content came before it. Errors are bounded in number; a call that is at fault is never among the calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from toolkit.contracts import Json, Violation
from toolkit.schema import deadline
from toolkit.validate.shown import cut, shown
from toolkit.validate.tools.events import (
    Arguments,
    Called,
    Calling,
    Content,
    Reasoning,
    Refused,
    ToolCall,
    ToolEvent,
    ToolResult,
)
from toolkit.validate.tools.offered import ToolSet
from toolkit.validate.tools.source import SPACE, Fault
from toolkit.validate.utf8 import shown_text

MOST_ERRORS = 64
TURN_SECONDS = 1.0  # of CPU time, to judge the arguments of all calls of a turn


class Prose:
    """Text without the white space around its blocks; `say` makes an event of a piece."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._parts: list[str] = []
        self._space: list[str] = []  # not yet known to be text
        self._is_edge = False  # the white space touches a block
        self.began = False  # something that is no white space has come

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def add(self, piece: str) -> None:
        core = piece.rstrip(SPACE)
        if core:
            inner = core if self.began or not self._is_edge else core.lstrip(SPACE)
            self.exact(("".join(self._space) if self.began or not self._is_edge else "") + inner)
            self._space.clear()
            self.began, self._is_edge = True, False
        self._space.append(piece[len(core) :])

    def edge(self) -> None:
        """A block begins or ends here."""
        self._is_edge = True

    def close(self) -> None:
        if not self._is_edge and any(self._space):
            self.exact("".join(self._space))

    def exact(self, piece: str) -> None:
        """Text of which all white space counts."""
        piece = shown_text(piece)
        self._parts.append(piece)
        self._say(piece)


class Turn:
    """Collects one turn. `choice` is "auto", "required", "none" or the name of the one tool to call; `parallel` the most calls."""

    def __init__(self, tools: ToolSet, choice: str, parallel: int) -> None:
        self.tools = tools
        self.events: list[ToolEvent] = []
        self.content = Prose(lambda text: self.events.append(Content(text)))
        self.reasoning = Prose(lambda text: self.events.append(Reasoning(text)))
        self.errors: list[Violation] = []
        self.calls: list[ToolCall] = []
        self.begun = 0  # calls, refused ones included
        self.open: Call | None = None
        self._seconds = TURN_SECONDS  # left
        self._choice, self._parallel = choice, parallel

    def edge(self) -> None:
        """A call or reasoning block begins or ends."""
        self.content.edge()
        self.reasoning.edge()

    def call(self) -> Call:
        """A call has begun."""
        self.open = Call(self, self.begun)
        self.begun += 1
        return self.open

    def refusal_of(self, name: str, index: int) -> Violation | None:
        """Why a call of `name` cannot be run, whatever its arguments are."""
        path = f"/calls/{index}"
        if name not in self.tools:
            offered = ", ".join(self.tools)
            return Violation(
                f"{path}/name", "tool", cut(offered), shown(name), cut(f"tool {name!r} was not offered: {offered}")
            )
        if self._choice == "none" or (self._choice not in ("auto", "required") and name != self._choice):
            wanted = "no call" if self._choice == "none" else f"a call of {self._choice}"
            return Violation(f"{path}/name", "tool_choice", wanted, shown(name), cut(f"{wanted} was asked for, not of {name}"))
        if index >= self._parallel:
            return Violation(
                path, "parallel", f"at most {self._parallel}", str(index + 1), f"more than {self._parallel} calls in one turn"
            )
        return None

    def violations(self, name: str, arguments: Json) -> list[Violation]:
        """What is wrong with the arguments of a call of an offered tool."""
        began = time.thread_time()
        with deadline(self._seconds):
            found = self.tools[name].violations(arguments)
        self._seconds -= time.thread_time() - began
        return found

    def blame(self, index: int | None, *violations: Violation) -> None:
        """Record errors; the last of MOST_ERRORS says that there are more."""
        room = MOST_ERRORS - len(self.errors)
        if room > 0:
            self.errors += violations[:room]
            if len(self.errors) == MOST_ERRORS:
                self.errors[-1] = replace(self.errors[-1], message=cut(f"{self.errors[-1].message}; there may be more"))
        self.events.append(Refused(index, violations))

    def fault(self, fault: Fault, found: str) -> None:
        """Something does not fit the format: the call that is open is none."""
        call, self.open = self.open, None
        path = "" if call is None else f"/calls/{call.index}"
        what = Violation(path + fault.path, fault.keyword, fault.expected, shown(shown_text(found[:400])), cut(fault.why))
        self.blame(None if call is None else call.index, what)

    def result(self) -> ToolResult:
        """The stream has ended."""
        self.content.close()
        self.reasoning.close()
        if not self.calls and not self.errors and self._choice not in ("auto", "none"):
            wanted = "a call" if self._choice == "required" else f"a call of {self._choice}"
            self.blame(None, Violation("", "tool_choice", wanted, "none", f"{wanted} was asked for, and there is none"))
        return ToolResult(
            calls=tuple(self.calls), content=self.content.text, reasoning=self.reasoning.text, errors=tuple(self.errors),
            last_events=tuple(self.events),
        )  # fmt: skip


class Call:
    """One call in the making: its name, its arguments as they come, its end."""

    def __init__(self, turn: Turn, index: int) -> None:
        self.index = index
        self._turn = turn
        self._name: str | None = None
        self._muted = False  # nothing is said about a call that cannot be run
        self._held: list[str] = []  # of the arguments, until the name is there

    def named(self, name: str) -> None:
        """The name is known, once."""
        self._name = name
        refusal = self._turn.refusal_of(name, self.index)
        self._muted = refusal is not None
        if refusal is not None:
            self._turn.blame(self.index, refusal)
            return
        self._turn.events.append(Calling(self.index, name))
        self.add("".join(self._held))

    def add(self, piece: str) -> None:
        """More of the arguments' JSON."""
        if self._name is None:
            self._held.append(piece)
        elif piece and not self._muted:
            self._turn.events.append(Arguments(self.index, piece))

    def end(self, arguments: Json, raw: str) -> None:
        """The call is whole: judge it."""
        self._turn.open = None
        if self._muted or self._name is None:
            return
        violations = self._turn.violations(self._name, arguments)
        if violations:
            path = f"/calls/{self.index}/arguments"
            self._turn.blame(self.index, *(replace(each, path=path + each.path) for each in violations))
            return
        call = ToolCall(self.index, self._name, arguments, raw.strip(SPACE))
        self._turn.calls.append(call)
        self._turn.events.append(Called(self.index, call))
