"""Progress: a bar with the time left on a terminal, a line now and then elsewhere.

In: counts.   Out: text on a rich console.   Knows nothing about: jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

PLAIN_EVERY_S = 10.0


@contextmanager
def progress(console: Console) -> Iterator[Callable[[int, int, int], None]]:
    """A function (done, total, failed) that shows how far a job is."""
    if not console.is_terminal:
        yield _plain(console)
        return
    columns = (
        TextColumn("records"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[failed]} failed"),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(elapsed_when_finished=False),
    )  # fmt: skip
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("records", total=None, failed=0)
        yield lambda done, total, failed: bar.update(task, completed=done, total=total, failed=failed)


def _plain(console: Console) -> Callable[[int, int, int], None]:
    began = last = time.monotonic()
    first: int | None = None

    def show(done: int, total: int, failed: int) -> None:
        nonlocal first, last
        first = done if first is None else first
        now = time.monotonic()
        if done < total and now - last < PLAIN_EVERY_S:
            return
        last = now
        left = f", about {(now - began) / (done - first) * (total - done):.0f} s left" if done > first and done < total else ""
        console.print(f"{done}/{total} records, {failed} failed{left}", highlight=False)

    return show
