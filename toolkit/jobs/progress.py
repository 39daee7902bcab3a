"""Progress: a bar with the time left on a terminal, a line now and then elsewhere.

In: counts.   Out: text on a rich console.   Knows nothing about: jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from toolkit.jobs.eta import Eta

PLAIN_EVERY_S = 10.0

Show = Callable[[int, "int | None", int], None]  # records done, in all (None = not known), failed


@contextmanager
def progress(console: Console) -> Iterator[Show]:
    """A function (done, total, failed) that shows how far a job is."""
    if not console.is_terminal:
        yield _plain(console)
        return
    columns = (
        TextColumn("records"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[failed]} failed"),
        TimeElapsedColumn(), TextColumn("{task.fields[left]}"),
    )  # fmt: skip
    left = _Left()
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("records", total=None, failed=0, left="")
        yield lambda done, total, failed: bar.update(
            task, completed=done, total=total, failed=failed, left=left(done, total).removeprefix(", ")
        )


class _Left:
    """Words for the time left, "" while it is not known."""

    def __init__(self) -> None:
        self._eta: Eta | None = None

    def __call__(self, done: int, total: int | None) -> str:
        now = time.monotonic()
        if self._eta is None:
            self._eta = Eta(done, now)
        self._eta.note(done, now)
        seconds = None if total is None else self._eta.left(done, total, now)
        return f", about {_span(seconds)} left" if seconds is not None and done != total else ""


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _plain(console: Console) -> Show:
    last = time.monotonic()
    left = _Left()

    def show(done: int, total: int | None, failed: int) -> None:
        nonlocal last
        said = left(done, total)
        now = time.monotonic()
        if done != total and now - last < PLAIN_EVERY_S:
            return
        last = now
        console.print(f"{done}/{total if total is not None else '?'} records, {failed} failed{said}", highlight=False)

    return show
