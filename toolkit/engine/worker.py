"""Worker: the one thread that owns the scheduler. Callers hand it jobs and listen to their events.

Knows nothing about: models, loops. Invariant: a job handed in always ends in an event - also when the engine dies or closes.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from toolkit.engine.job import Job
from toolkit.errors import EngineError, ToolkitError


class Steps(Protocol):
    """What a worker drives: the scheduler of this process' model, or the rounds of a server."""

    @property
    def idle(self) -> bool: ...

    @property
    def blocks_held(self) -> int: ...

    def add(self, job: Job) -> None: ...

    def step(self) -> None: ...

    def fail_all(self, error: ToolkitError) -> None: ...


class Worker:
    """Runs `scheduler.step` while there is work, sleeps while there is none."""

    def __init__(self, scheduler: Steps, within: Callable[[], AbstractContextManager[object]] = nullcontext) -> None:
        """`within` gives what all steps run inside of: entered once, since between passes every call is slow."""
        self._scheduler, self._within = scheduler, within
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ended: ToolkitError | None = None  # why no job is taken any more
        self._thread = threading.Thread(target=self._run, name="toolkit-engine", daemon=True)
        self._thread.start()

    @property
    def blocks_held(self) -> int:
        return self._scheduler.blocks_held

    def submit(self, job: Job) -> None:
        if threading.current_thread() is self._thread:
            raise EngineError("a validator asked the engine that waits for it", hint="call no engine from a validator")
        with self._lock:
            if self._ended is not None:
                raise self._ended
            self._inbox.put(job)

    def close(self) -> None:
        """Fail what is still running, stop the thread; closing twice is harmless."""
        with self._lock:
            if self._ended is None:
                self._ended = EngineError("the engine is closed", hint="open a new one")
                self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        reason: ToolkitError = EngineError("the engine was closed while the request was running")
        try:
            with self._within():
                while self._collect():
                    self._scheduler.step()
        except BaseException as error:
            reason = EngineError(f"the engine died: {type(error).__name__}: {error}", hint="open a new one")
        with self._lock:
            self._ended = self._ended or reason
        self._scheduler.fail_all(reason)
        while not self._inbox.empty():
            job = self._inbox.get()
            if job is not None:
                job.fail(reason)

    def _collect(self) -> bool:
        """Take what callers handed in, waiting for it if there is nothing else to do; False when closed."""
        while self._scheduler.idle or not self._inbox.empty():
            job = self._inbox.get()
            if job is None:
                return False
            self._scheduler.add(job)
        return True
