"""Flow: records to outcomes, several at a time, in input order, with a bounded number of everything.

In: records in order, a function for one of them.   Out: outcomes in the same order.
Knows nothing about: engines, files.
Invariants: a record that is handed out is begun; at most `concurrency.now` run, at most WINDOW times that many and about MAX_BYTES
of them are handed out and not yet given back, so memory is bounded and slow writing or a slow head of the line holds the rest back.
After `stop` is set no record is begun, those that run are finished. An exception of one is raised in its place, after all before it;
on the way out by any door nothing is left running.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from toolkit.jobs.attempt import Attempt, Outcome
from toolkit.jobs.concurrency import MOST, Concurrency
from toolkit.jobs.read import BadRecord, Record

WINDOW = 4  # records handed out for one that may run: what hides one slow record at the head of the line
MAX_BYTES = 64 << 20

_Given = tuple[Record | BadRecord, "Future[Outcome]"]


def in_order(
    attempt: Attempt,
    records: Iterable[Record | BadRecord],
    concurrency: Concurrency,
    name: str,
    stop: threading.Event,
) -> Iterator[Outcome]:
    """Outcomes in the order of `records`; request ids begin with `name`. Input is read in the caller's thread, as it is needed."""
    flow = _Flow(iter(records), concurrency, stop, lambda pool, record: pool.submit(attempt, record, f"{name}:{record.index}"))
    with ThreadPoolExecutor(MOST, thread_name_prefix="record") as pool:
        try:
            yield from flow.run(pool)
        finally:
            attempt.stop()
            pool.shutdown(wait=True, cancel_futures=True)


class _Flow:
    def __init__(
        self,
        records: Iterator[Record | BadRecord],
        concurrency: Concurrency,
        stop: threading.Event,
        submit: Callable[[ThreadPoolExecutor, Record | BadRecord], Future[Outcome]],
    ) -> None:
        self._records, self._concurrency, self._stop, self._submit = records, concurrency, stop, submit
        self._window: deque[_Given] = deque()
        self._news = threading.Condition()
        self._ended: list[Future[Outcome]] = []
        self._running = 0
        self._bytes = 0
        self._more = True

    def run(self, pool: ThreadPoolExecutor) -> Iterator[Outcome]:
        """Outcomes in order; records are begun in between, when the caller comes for the next one."""
        while True:
            self._fill(pool)
            while self._window and self._window[0][1].done():
                record, future = self._window.popleft()
                self._bytes -= record.size
                yield future.result()
                self._settle(wait=False)
                self._fill(pool)
            if not self._window and not self._running:
                if not self._more or self._stop.is_set():
                    return
            elif not self._room():
                self._settle(wait=True)

    def _fill(self, pool: ThreadPoolExecutor) -> None:
        while self._room():
            record = next(self._records, None)
            if record is None:
                self._more = False
            else:
                self._hand_out(pool, record)

    def _room(self) -> bool:
        limit = self._concurrency.now
        few = self._running < limit and len(self._window) < WINDOW * limit
        return self._more and not self._stop.is_set() and few and (not self._window or self._bytes < MAX_BYTES)

    def _hand_out(self, pool: ThreadPoolExecutor, record: Record | BadRecord) -> None:
        future = self._submit(pool, record)
        self._window.append((record, future))
        self._running += 1
        self._bytes += record.size
        future.add_done_callback(self._end)

    def _end(self, future: Future[Outcome]) -> None:
        with self._news:
            self._ended.append(future)
            self._news.notify()

    def _settle(self, *, wait: bool) -> None:
        """Take note of records that ended; with `wait`, once one has."""
        with self._news:
            while wait and not self._ended:
                self._news.wait()
            ended, self._ended = self._ended, []
        for future in ended:
            self._running -= 1
            if future.cancelled() or future.exception() is not None:
                self._more = False
            else:
                self._concurrency.done(troubled=future.result().troubled)
