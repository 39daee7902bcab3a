"""Deadline: a call that is given up after so many seconds, whatever it waits for.

In: a call, seconds, a way to ask it to stop.   Out: its result, or TimedOutError.
Knows nothing about: engines, records.
Invariants: without a limit the call runs in the caller's own thread; with one, the caller waits at most `seconds` + GRACE_S. A call
that does not let go even then keeps a daemon thread, and its result is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from toolkit.errors import EngineError

GRACE_S = 2.0  # for a call that was asked to stop to do so

T = TypeVar("T")


class TimedOutError(EngineError):
    """A record took longer than it may."""


def within(seconds: float | None, call: Callable[[], T], cancel: Callable[[], None], *, limit: float | None = None) -> T:
    """The result of `call`. A result that comes while it is being cancelled counts. `limit` is what an error names (`seconds`)."""
    if seconds is None:
        return call()
    box: Future[T] = Future()
    threading.Thread(target=_run, args=(box, call), name="toolkit-deadline", daemon=True).start()
    try:
        return box.result(timeout=max(0.0, seconds))
    except TimeoutError:
        if box.done():
            raise
    cancel()
    took = f"it took more than {seconds if limit is None else limit:g} s"
    try:
        return box.result(timeout=GRACE_S)
    except TimeoutError:
        if box.done():
            raise
        raise TimedOutError(f"{took}, and the engine did not let go of it when asked") from None
    except EngineError:
        raise TimedOutError(took, hint="--record-timeout") from None


def _run(box: Future[T], call: Callable[[], T]) -> None:
    try:
        box.set_result(call())
    except BaseException as error:
        box.set_exception(error)
