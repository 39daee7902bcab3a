"""Worker: the one thread that owns the scheduler. Callers hand it jobs and listen to their events.

Knows nothing about: models, loops. Invariant: a job handed in always ends in an event - also when the engine dies or closes.
"""

from __future__ import annotations

import queue
import threading

from toolkit.contracts import Failed
from toolkit.engine.job import Job
from toolkit.engine.scheduler import Scheduler
from toolkit.errors import EngineError, ToolkitError


class Worker:
    """Runs `scheduler.step` while there is work, sleeps while there is none."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="toolkit-engine", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        with self._lock:
            if self._closed:
                raise EngineError("the engine is closed", hint="open a new one")
            self._inbox.put(job)

    def close(self) -> None:
        """Fail what is still running, stop the thread; closing twice is harmless."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        while self._collect():
            try:
                self._scheduler.step()
            except Exception as error:
                self._scheduler.fail_all(_wrapped(error))
        self._scheduler.fail_all(EngineError("the engine was closed while the request was running"))
        while not self._inbox.empty():
            job = self._inbox.get()
            if job is not None:
                job.sink(Failed(job.id, EngineError("the engine was closed before the request started")))

    def _collect(self) -> bool:
        """Take what callers handed in, waiting for it if there is nothing else to do; False when closed."""
        while self._scheduler.idle or not self._inbox.empty():
            job = self._inbox.get()
            if job is None:
                return False
            self._scheduler.add(job)
        return True


def _wrapped(error: Exception) -> ToolkitError:
    if isinstance(error, ToolkitError):
        return error
    return EngineError(f"a forward pass failed: {type(error).__name__}: {error}")
