"""Fleet: one or several servers of the same model. Which of them gets a request, and what happens when one dies.

    up --(a request fails)--> down --(back-off passed, asked who it is, answers as before)--> up
                               |
                               `-(answers as another model)--> foreign, for good

A server that nothing was heard of for `IDLE_S` is asked who it is before it gets work: it may have been started anew meanwhile.
A request goes to the preferred server if that is up, else to the one with the least lines in flight. What is a pure function of
its body (`post`) is repeated, elsewhere or after the back-off, until every server has been down for `patience_s`: a server that
is killed and restarted costs time and nothing else. A request that breaks `MOST_BROKEN` connections is not sent again. A stream is repeated only while nothing of it was passed on. A server that
hangs is not asked again by the request that it hung: more load helps nobody, another server may.
Knows nothing about: what requests mean, how a server is identified (`identify` raises where it is not the one it was).
Invariants: thread-safe; nothing sleeps longer than `_LONGEST_S` at a time, so `close` is seen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from toolkit.contracts import Json
from toolkit.engine.remote.connection import Connection, FailedRequestError
from toolkit.engine.remote.reply import refuse_aborted
from toolkit.errors import EngineError, ToolkitError

_FIRST_S, _LONGEST_S = 0.1, 2.0  # back-off of a server that is down: doubled from the first to the longest
MOST_BROKEN = 5  # times that a request may end in a broken connection
IDLE_S = 5.0  # shorter than any server takes to start
GENERATE = "/generate"


@dataclass(slots=True, eq=False)
class Server:
    """One server and what is known of it."""

    connection: Connection
    lines: int = 0  # in flight
    down_since: float | None = None
    retry_at: float = 0.0
    wait_s: float = _FIRST_S
    last_error: str = ""
    heard_at: float = field(default_factory=time.monotonic)
    asking: threading.Lock = field(default_factory=threading.Lock)  # held while it is asked who it is
    asked: int = 0  # times that it was
    foreign: ToolkitError | None = None  # why it is not asked any more

    @property
    def url(self) -> str:
        return self.connection.url

    @property
    def stale(self) -> bool:
        """Whether it may have become another one since it was last heard of."""
        return self.down_since is not None or (not self.lines and time.monotonic() - self.heard_at > IDLE_S)


@dataclass(slots=True)
class _Tries:
    """What became of one request so far. One that breaks connections again and again may be what breaks the servers."""

    sent: int = 0
    broken: int = 0
    since: float | None = None
    hung: set[str] = field(default_factory=set)

    def note(self, server: Server, error: FailedRequestError) -> None:
        self.since = self.since or time.monotonic()
        self.broken += not error.busy
        if error.hang:
            self.hung.add(server.url)

    def over(self, patience_s: float) -> bool:
        """Whether it must not be sent again."""
        return self.broken >= MOST_BROKEN or (self.since is not None and time.monotonic() - self.since > patience_s)


class Fleet:
    """Servers under one set of verbs: `post`, `stream`, `close`."""

    def __init__(
        self, connections: Sequence[Connection], identify: Callable[[Connection], object], *, patience_s: float
    ) -> None:
        self.servers = tuple(Server(each) for each in connections)
        self.patience_s = patience_s
        self._identify = identify
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._nurses: list[threading.Thread] = []

    @property
    def up(self) -> int:
        """Servers that answered last time."""
        return sum(each.down_since is None and each.foreign is None for each in self.servers)

    def least_loaded(self) -> Server:
        """The server to prefer for what begins now."""
        with self._lock:
            return min(self.servers, key=lambda each: (each.foreign is not None, each.down_since is not None, each.lines))

    def post(self, body: Mapping[str, Json], *, lines: int, prefer: Server | None = None) -> tuple[Json, int]:
        """(the reply to `body`, the requests it took). Raises the server's refusal, or EngineError where none can answer."""
        tries = _Tries()
        while True:
            server = self._next(prefer, tries)
            if server is None:
                continue
            tries.sent += 1
            try:
                with self._loaded(server, lines):
                    reply = server.connection.post(GENERATE, body)
                    refuse_aborted(reply)
                server.wait_s = _FIRST_S
            except FailedRequestError as error:
                self._failed(server, error, tries)
                continue
            self._answered(server)
            return reply, tries.sent

    def stream(self, body: Mapping[str, Json], *, lines: int, sent: Callable[[], object]) -> Iterator[Json]:
        """The events of one stream; `sent` hears of every request. FailedRequestError where it breaks off after its first event."""
        tries = _Tries()
        begun = False
        while True:
            server = self._next(None, tries)
            if server is None:
                continue
            sent()
            try:
                with self._loaded(server, lines):
                    for event in server.connection.stream(GENERATE, body):
                        refuse_aborted(event)
                        begun, server.heard_at = True, time.monotonic()
                        yield event
                server.wait_s = _FIRST_S
            except FailedRequestError as error:
                self._failed(server, error, tries, final=begun)
                continue
            self._answered(server)
            return

    def wake(self) -> None:
        """End all requests in errors, those that wait for a server included."""
        self._closed.set()
        for each in self.servers:
            each.connection.wake()

    def close(self) -> None:
        """Close all connections, once nobody is inside a request."""
        self.wake()
        for thread in self._nurses:
            thread.join()
        for each in self.servers:
            each.connection.close()

    def _next(self, prefer: Server | None, tries: _Tries) -> Server | None:
        """The server to ask now; None after a pause if none may be asked yet; EngineError where there is no hope."""
        if self._closed.is_set():
            raise EngineError("the engine was closed while the request was running")
        with self._lock:
            server, pause_s = self._choose(prefer, tries)
        if server is None:
            self._closed.wait(pause_s)
            return None
        asked = server.asked
        with server.asking:  # who comes second finds it asked, and does not wait for it once more where it hangs
            if server.stale and server.asked == asked:
                self._revive(server)
            return server if server.down_since is None and server.foreign is None else None

    def _choose(self, prefer: Server | None, tries: _Tries) -> tuple[Server | None, float]:
        """(server, 0), or (None, seconds until one may be asked again)."""
        now = time.monotonic()
        able = [each for each in self.servers if each.foreign is None and each.url not in tries.hung]
        up = [each for each in able if each.down_since is None]
        if up:
            self._look_after([each for each in able if each.down_since is not None and each.retry_at <= now])
            return (prefer if prefer in up else min(up, key=lambda each: each.lines)), 0.0
        due = min(able, key=lambda each: each.retry_at, default=None)
        if due is None or (due.retry_at > now and all(now - (each.down_since or now) > self.patience_s for each in able)):
            raise self._hopeless()
        if due.retry_at > now:
            return None, min(due.retry_at - now, _LONGEST_S)
        due.retry_at = now + due.wait_s  # others wait for what this one finds
        return due, 0.0

    def _look_after(self, due: Sequence[Server]) -> None:
        """See in the background whether servers that were down have come back: no request waits for that while others are up."""
        for each in due:
            each.retry_at = time.monotonic() + 10 * _LONGEST_S
            nurse = threading.Thread(target=self._revive, args=(each,), name="toolkit-revive", daemon=True)
            self._nurses = [thread for thread in self._nurses if thread.is_alive()] + [nurse]
            nurse.start()

    def _revive(self, server: Server) -> None:
        """Ask a server who it is."""
        try:
            self._identify(server.connection)
        except FailedRequestError as error:
            self._down(server, error)
        except ToolkitError as error:
            with self._lock:
                server.foreign = error
        else:
            self._answered(server)
        finally:
            server.asked += 1

    def _failed(self, server: Server, error: FailedRequestError, tries: _Tries, *, final: bool = False) -> None:
        """Note a failure; raises it where no other try is left."""
        if error.repeat:
            self._down(server, error)
        tries.note(server, error)
        nowhere = all(each.url in tries.hung or each.foreign is not None for each in self.servers)
        if final or not error.repeat or nowhere or tries.over(self.patience_s):
            raise error

    def _down(self, server: Server, error: FailedRequestError) -> None:
        with self._lock:
            now = time.monotonic()
            if server.down_since is None:
                server.down_since = now
            server.retry_at = now + server.wait_s
            server.wait_s = min(2 * server.wait_s, _LONGEST_S)
            server.last_error = error.message

    def _answered(self, server: Server) -> None:
        with self._lock:
            server.down_since, server.heard_at = None, time.monotonic()

    def _hopeless(self) -> ToolkitError:
        foreign = [each.foreign for each in self.servers if each.foreign is not None]
        if len(foreign) == len(self.servers):
            return foreign[0]
        said = "; ".join(each.last_error or each.url for each in self.servers)
        return EngineError(f"no server answers: {said}", hint=f"waited {self.patience_s:g} s for one to come back (patience_s)")

    @contextmanager
    def _loaded(self, server: Server, lines: int) -> Iterator[None]:
        with self._lock:
            server.lines += lines
        try:
            yield
        finally:
            with self._lock:
                server.lines -= lines
