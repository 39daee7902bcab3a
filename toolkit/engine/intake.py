"""Intake: a stream of requests in, one stream of their events out, a bounded number of them in flight.

Knows nothing about: how an engine runs requests; it is given `submit` and `cancel`.
Invariants: requests are taken one by one while events come; ids in flight are distinct; closing the events cancels the rest.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from toolkit.contracts import Done, Event, Failed, Request
from toolkit.errors import UsageError

Sink = Callable[[Event], None]


class Intake:
    """Names and counts the requests of one engine."""

    def __init__(self, submit: Callable[[Request, Sink], None], cancel: Callable[[str], None], *, in_flight: int) -> None:
        """`submit` must end every request in events; a request that it raises on was never taken."""
        self._submit, self._cancel = submit, cancel
        self._most = in_flight
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._names: set[str] = set()

    def run(self, requests: Iterable[Request]) -> Iterator[Event]:
        """The events of all requests as they come."""
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        stream = iter(requests)
        left: dict[str, int] = {}  # request id -> results still to come
        more = True
        try:
            while more or left:
                given = next(stream, None) if more and len(left) < self._most else None
                if given is not None:
                    self._take(given, left, events.put)
                elif len(left) < self._most:
                    more = False
                while left and (given is None or not events.empty()):
                    event = events.get()
                    self._count(event, left)
                    yield event
                    if more and given is None:
                        break
        finally:
            for name in list(left):
                self._cancel(name)
                self._forget(name, left)

    def _take(self, given: Request, left: dict[str, int], sink: Sink) -> None:
        request = given if given.id else replace(given, id=f"request-{next(self._numbers)}")
        with self._lock:
            if request.id in self._names:
                raise UsageError(f"request id {request.id!r} is in use", hint="ids of requests in flight are distinct")
            self._names.add(request.id)
        left[request.id] = 1 if request.beam else request.sampling.n
        self._submit(request, sink)

    def _count(self, event: Event, left: dict[str, int]) -> None:
        """Note what an event ends."""
        if isinstance(event, Done):
            left[event.request_id] -= 1
        if isinstance(event, Failed) or left[event.request_id] == 0:
            self._forget(event.request_id, left)

    def _forget(self, name: str, left: dict[str, int]) -> None:
        del left[name]
        with self._lock:
            self._names.discard(name)
