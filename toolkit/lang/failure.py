"""Failure: what becomes of a program's executor once a segment of it has failed.

SGLang runs a program's segments in a thread of their own and keeps its first error, but whoever goes on with the state
waits forever for work that no thread will do, and a joined fork quietly lacks the variables of the branch that failed.
`close_on_error` has every executor over a backend with `closes_failed` closed by its first error, the backend's or SGLang's own:
later segments are dropped, and whatever asks for a result gets the error. Other backends' executors stay SGLang's.

    state.error()                                             returns the error
    state["x"], get_meta_info, fork, join, text_iter          raise it
    state.text(), state.sync()                                return what there is

A branch of a fork that nobody reads fails without its parent knowing: SGLang keeps no way back from a branch. So every failure
is one line on the log "toolkit.lang" (on stderr, unless the program sets up logging) in place of the traceback that
SGLang's worker would print.

Knows nothing about: why the segment failed.
"""

from __future__ import annotations

import functools
import logging
import warnings
from queue import Queue
from typing import Any, NoReturn

from sglang.lang.interpreter import StreamExecutor

_LOG = logging.getLogger("toolkit.lang")
# The announcement of SGLang's worker carries the traceback; one through `run_or_fail` has been told on the log already.
warnings.filterwarnings("ignore", r"(?s)Error in stream_executor: .*, in run_or_fail\n", UserWarning)


class FailedExecutor(StreamExecutor):
    """A StreamExecutor after its error; instances are made by `fail` out of living ones."""

    def _raise(self, *_: Any, **__: Any) -> NoReturn:
        raise self.error_

    get_var = get_meta_info = fork = _raise

    @property
    def variables(self) -> Any:
        """Raises the error: nothing may be read as if the program had come to its end."""
        self._raise()

    @property
    def meta_info(self) -> Any:
        """Raises the error, also in whoever waited for a segment while it failed."""
        self._raise()

    @property
    def fork_start_text_pos(self) -> Any:
        """Raises the error: a failed branch's text must not be joined."""
        self._raise()

    @property
    def is_finished(self) -> Any:
        """Raises the error: a stream that breaks off must not look like one that ended."""
        self._raise()

    @is_finished.setter
    def is_finished(self, value: bool) -> None:
        """The worker says so on its way out."""

    def submit(self, expr: object) -> None:
        """Drop the segment: no thread would run it."""

    def sync(self) -> None:
        """Nothing to wait for."""

    def error(self) -> Any:
        """The error."""
        return self.error_

    def end(self) -> None:
        """Nothing to end: the worker has left already."""


def close_on_error(executor: type[StreamExecutor]) -> None:
    """Have executors of that class closed by their first error; a second call changes nothing."""
    execute = executor._execute
    if hasattr(execute, "__wrapped__"):
        return

    def run_or_fail(self: StreamExecutor, segment: object) -> None:
        try:
            execute(self, segment)
        except Exception as error:
            if not isinstance(self, FailedExecutor):  # or a part of this segment has closed it already
                fail(self, error)
            raise

    @functools.wraps(execute)
    def executed(self: StreamExecutor, segment: object) -> None:
        (run_or_fail if getattr(self.backend, "closes_failed", False) else execute)(self, segment)

    executor._execute = executed


def fail(executor: StreamExecutor, error: Exception) -> None:
    """Close `executor` with `error` and wake up whoever waits for it. Called in the thread that runs its segments."""
    if executor.use_thread:  # without one, the error is raised in whoever runs the program
        _LOG.warning("a segment failed: %s: %s", type(error).__name__, " ".join(str(error).split())[:500])
    executor.error_ = error
    executor.__class__ = FailedExecutor
    if executor.use_thread:
        _release(executor)
    for event in (*executor.variable_event.values(), *(executor.stream_var_event or {}).values()):
        event.set()
    if executor.stream_text_event is not None:
        executor.stream_text_event.set()


def _release(executor: StreamExecutor) -> None:
    """Let go of those who wait for the queue: SGLang does so only after a warning, which may be an error itself.

    The worker, on its way out, counts down the queue that it then finds: one with the segment at hand.
    """
    waited_for, executor.queue = executor.queue, Queue()
    executor.queue.unfinished_tasks = 1
    with waited_for.all_tasks_done:
        waited_for.unfinished_tasks = 0
        waited_for.all_tasks_done.notify_all()
