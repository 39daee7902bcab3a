"""Serve: a real SGLang server for as long as a block of code runs.

    with serve("smollm2", speculation=Speculation(preset="ngram")) as server:
        engine = toolkit.open_engine(server.url)

In: what `launch` takes.   Out: a Server that answers.
Knows nothing about: requests, engines.
Invariants: a Server that is given out has answered /health; however the block or this process ends, no process of the server is
left; a server that does not come up raises with its last log lines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from urllib.request import ProxyHandler, build_opener

from toolkit.contracts import require
from toolkit.lang.diagnose import explain, milestone
from toolkit.lang.launch import Launch, check_runnable, free_port, launch
from toolkit.lang.presets import Speculation
from toolkit.lang.supervise import Supervised, Watch

DEADLINE = 600.0  # seconds until the server must answer; a large model on a GPU takes minutes
POLL = 0.25
REPLY_SECONDS = 30.0  # SGLang answers /health with a token that it generated

Progress = Callable[[float, str], None]  # seconds since the start, what the server has reached


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers. `model` is the folder (or hub name) it serves, `pid` its first process."""

    url: str
    model: str
    pid: int
    plan: Launch = field(repr=False)
    _process: Supervised = field(repr=False)

    def pids(self) -> tuple[int, ...]:
        """Process ids of the server now: itself and what it started."""
        import psutil

        try:
            return (self.pid, *(child.pid for child in psutil.Process(self.pid).children(recursive=True)))
        except psutil.NoSuchProcess:
            return ()

    def log(self) -> list[str]:
        """The last lines that the server printed."""
        return self._process.lines

    def wait(self, seconds: float = 0.0) -> None:
        """Return after that time; EngineError with the last log lines as soon as the server has ended."""
        code = self._process.wait(seconds)
        if code is not None:
            raise explain("the server ended", code, self.log())


@contextmanager
def serve(
    model: str = "smollm2",
    *,
    speculation: Speculation | None = None,
    device: str = "auto",
    host: str = "127.0.0.1",
    port: int | None = None,
    flags: Sequence[str] = (),
    deadline: float = DEADLINE,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Iterator[Server]:
    """Start a server, yield it once it answers, stop it at the end. `port` None takes a free one; `flags` are SGLang's own.

    `watch` gets every line of its log, `progress` what it has reached, both in a thread of their own. Errors: those of
    `toolkit.lang.launch.launch` and `run_server`.
    """
    plan = launch(model, speculation, device=device, host=host, port=port or free_port(host), flags=flags)
    with run_server(plan, deadline=deadline, progress=progress, watch=watch) as server:
        yield server


@contextmanager
def run_server(
    plan: Launch, *, deadline: float = DEADLINE, progress: Progress | None = None, watch: Watch | None = None
) -> Iterator[Server]:
    """The same for a launch that is made already.

    MissingExtraError for a package that is not installed; EngineError for a port or a GPU that is not there, and, with the
    last log lines, for a server that ends or does not answer within `deadline` seconds; UsageError where it refuses its flags.
    """
    require(deadline > 0, "deadline", deadline, "seconds > 0")
    check_runnable(plan)
    started = time.monotonic()

    def heard(line: str) -> None:
        if watch is not None:
            watch(line)
        reached = milestone(line)
        if progress is not None and reached:
            progress(time.monotonic() - started, reached)

    process = Supervised(plan.command, plan.environment(), watch=heard)
    try:
        _wait_until_healthy(plan.url, process, started + deadline)
        yield Server(plan.url, plan.model, process.pid, plan, process)
    finally:
        process.stop()


def _wait_until_healthy(url: str, process: Supervised, deadline: float) -> None:
    opener = build_opener(ProxyHandler({}))  # the server is on this machine: no proxy in between
    while time.monotonic() < deadline:
        code = process.wait(POLL)
        if code is not None:
            raise explain("the server ended before it answered", code, process.lines)
        try:
            with opener.open(f"{url}/health", timeout=REPLY_SECONDS) as reply:
                if reply.status == 200:
                    return
        except (OSError, HTTPException):
            continue  # refused while it starts, 503 while it loads
    raise explain("the server did not answer before the deadline", None, process.lines)
