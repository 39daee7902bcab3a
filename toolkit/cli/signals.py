"""Signals: the first Ctrl-C (or SIGTERM) asks for an end, the second ends.

In: signals of this process.   Out: an event that the first one sets; KeyboardInterrupt from the second on.
Knows nothing about: what is to end. Outside the main thread, where Python delivers no signals, the event is only ever set by others.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """The event, while the handlers are in place; what was there before comes back."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def asked(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        click.echo("stopping: what runs is finished first; once more ends it at once", err=True)

    heard = [
        number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN
    ]  # a shell's background job ignores some
    before = {number: signal.signal(number, asked) for number in heard}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
