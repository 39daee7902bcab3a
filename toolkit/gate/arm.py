"""Arm: one engine under the gate - its answers, and everything it was ever heard to say, for the books.

In: an open engine, requests.   Out: answers in the order of the requests: results, the stream as it came, or the error.
Knows nothing about: what is checked, the other engine.
Invariants: an answer is waited for a bounded time; an engine that is silent for longer raises SilentError. A request that the engine
refuses by name (UnsupportedError) is an answer, too. Engines are never closed here.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from toolkit.contracts import Completion, Delta, Done, Engine, Event, Failed, Request
from toolkit.errors import EngineError, ToolkitError, UnsupportedError

PATIENCE_S = 180.0  # between two events of an engine
_MANY = 8


_MOST_SAID = 500  # characters
_EVENTS = 64  # times as many events as tokens are heard out


class SilentError(EngineError):
    """An engine said nothing for too long."""


@dataclass(slots=True)
class Answer:
    """What came of one request: its stream, its samples in the order of their index, or an error."""

    request: Request
    deltas: list[Delta] = field(default_factory=list)
    results: dict[int, Completion] = field(default_factory=dict)
    error: ToolkitError | None = None

    @property
    def is_refused(self) -> bool:
        """The engine does not have what was asked for, and says so."""
        return isinstance(self.error, UnsupportedError)

    @property
    def samples(self) -> list[Completion]:
        return [self.results[index] for index in sorted(self.results)]

    @property
    def first(self) -> Completion:
        return self.results[0]


Memory = dict[str, list[Answer]]


class Arm:
    """The engine of one side; `answers` are all it ever gave, `what` says what they were for."""

    def __init__(self, name: str, engine: Engine, *, patience_s: float = PATIENCE_S, memory: Memory | None = None) -> None:
        """`memory`: answers found there are not asked for again, new ones are left there."""
        self.name = name
        self.engine = engine
        self.patience_s = patience_s
        self.answers: list[tuple[str, Answer]] = []
        self.counters: dict[str, float] = {}  # what the engine exported before
        self.drafts: dict[str, float] = engine.drafts() if hasattr(engine, "drafts") else {}  # the same, of drafts
        self.memory = memory
        self._count = 0

    @property
    def at_once(self) -> int:
        """Requests that may be asked together where only their sum matters: few of an engine that drafts, or it finds no room to."""
        parts = getattr(self.engine, "parts", None)
        plain = parts[1] is None if parts is not None else self.engine.capabilities.drafters == ("none",)
        return _MANY if plain else 1

    def ask(self, what: str, requests: Sequence[Request], *, together: int = 8) -> list[Answer]:
        """Run the requests, `together` at a time. Raises SilentError; whatever else an engine does wrong is the answer of its requests."""
        known = self.memory.get(key := f"{what} {together} {list(requests)}") if self.memory is not None else None
        found: list[Answer] = list(known or ())
        for start in range(0, 0 if known else len(requests), together):
            found += self._batch(requests[start : start + together])
        if self.memory is not None:
            self.memory[key] = found
        self.answers += [(what, each) for each in found]
        return found

    def _batch(self, requests: Sequence[Request]) -> list[Answer]:
        found: dict[str, Answer] = {}
        for request in requests:
            self._count += 1
            named = replace(request, id=f"gate-{id(self):x}-{self._count}")
            found[named.id] = Answer(named)
        most, count = sum(_EVENTS * (each.sampling.max_tokens + _EVENTS) * each.sampling.n for each in requests), 0
        heard: queue.SimpleQueue[Event | BaseException | None] = queue.SimpleQueue()
        over = threading.Event()  # nobody hears what comes now
        asked = [each.request for each in found.values()]
        threading.Thread(target=self._listen, args=(asked, heard.put, over), daemon=True).start()
        while (event := self._next(heard, found)) is not None:
            if isinstance(event, Exception):
                _fail(found, event)
            elif isinstance(event, BaseException):
                raise event
            elif why := _wrong(event, found):
                _fail(found, EngineError(f"the engine broke its contract: {why}"))
            else:
                _note(found[event.request_id], event)
            count += 1
            if count > most:
                over.set()
                for name in found:
                    self.engine.cancel(name)
                _fail(found, EngineError(f"the engine went on after {most} events"))
                break
        for each in found.values():
            if each.error is None and len(each.results) != each.request.sampling.n:
                each.error = EngineError(f"{len(each.results)} of {each.request.sampling.n} samples came")
        return list(found.values())

    def _listen(self, requests: Sequence[Request], put: Callable[[Any], None], over: threading.Event) -> None:
        try:
            for event in self.engine.generate(requests):
                put(event)
                if over.is_set():
                    return
            put(None)
        except BaseException as error:
            put(error)
            put(None)

    def _next(
        self, heard: queue.SimpleQueue[Event | BaseException | None], found: dict[str, Answer]
    ) -> Event | BaseException | None:
        try:
            return heard.get(timeout=self.patience_s)
        except queue.Empty:
            for name in found:
                self.engine.cancel(name)
            raise SilentError(f"{self.name} said nothing for {self.patience_s:g} s", hint="is the server alive?") from None


def _fail(found: Mapping[str, Answer], error: Exception) -> None:
    """All of these requests; what is no error of this package is a fault of the engine."""
    known = (
        error
        if isinstance(error, ToolkitError)
        else EngineError(f"the engine failed: {type(error).__name__}: {str(error)[:_MOST_SAID]}")
    )
    for each in found.values():
        each.error = each.error or known


def _wrong(event: Any, found: Mapping[str, Answer]) -> str:
    """Why an event is none that an engine may give."""
    answer = found.get(getattr(event, "request_id", ""))
    if answer is None or not isinstance(event, Delta | Done | Failed):
        return f"a {type(event).__name__} of no request that was made"
    if isinstance(event, Failed):
        return ""
    if not 0 <= event.index < answer.request.sampling.n:
        return f"sample {event.index} of {answer.request.sampling.n}"
    if isinstance(event, Done) and not isinstance(event.result, Completion):
        return f"a {type(event.result).__name__} for a text"
    return "a sample that ended twice" if isinstance(event, Done) and event.index in answer.results else ""


def _note(answer: Answer, event: Event) -> None:
    if isinstance(event, Delta):
        answer.deltas.append(event)
    elif isinstance(event, Failed):
        answer.error = event.error
    elif isinstance(event, Done):
        assert isinstance(event.result, Completion)
        answer.results[event.index] = event.result
