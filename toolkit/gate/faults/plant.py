"""Plant: where faults take hold of one engine, and of that engine only - its lines, its samples, its passes, its events.

In: an open engine that nobody else uses, what is to be broken.   Out: the same engine, broken from the next request on.
Knows nothing about: single faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from toolkit.contracts import Request
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.forward import Feed
from toolkit.engine.intake import Sink
from toolkit.engine.loops.plain import Sample
from toolkit.engine.loops.speculative import Line
from toolkit.engine.loops.walk import Walk
from toolkit.errors import UnsupportedError
from toolkit.kv.store import KVStore


class Burst(Sample):
    """A speculated sample that knows where it is: `before` tokens stood when the pass came."""

    before = 0
    is_verifying = False  # the pass has a draft

    @property
    def is_inside(self) -> bool:
        """Behind the first token of a pass."""
        return len(self.ids) > self.before

    def _go(self, walk: Walk) -> None:
        self.before, self.is_verifying = len(self.ids), len(walk.tree) > 0
        super()._go(walk)

    @contextmanager
    def given(self, **changes: Any) -> Iterator[None]:
        """With other sampling parameters for a while."""
        params = self.params
        self.params = replace(params, **changes)
        try:
            yield
        finally:
            self.params = params

    def uniform(self) -> float:
        """The sample's next random number."""
        return float(torch.rand((), generator=self._random, dtype=torch.float64))


def on_samples(engine: EmbeddedEngine, kind: type[Burst]) -> None:
    """Speculated samples are of that kind; what is read again by the guard is not."""

    class Broken(Line):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.sample.__class__ = kind

    engine._line = Broken


def on_events(engine: EmbeddedEngine, wrap: Callable[[Sink], Sink]) -> None:
    """The events of every request go through `wrap(sink)`."""
    submit = engine._intake._submit

    def broken(request: Request, sink: Sink) -> None:
        submit(request, wrap(sink))

    engine._intake._submit = broken


def node_rows(engine: EmbeddedEngine) -> Callable[[], list[int]]:
    """What tells, inside a pass, which of its rows are drafted tokens."""
    forward = engine._forward
    run, rows = forward._run, list[int]()

    def noting(feeds: Sequence[Feed]) -> list[Tensor]:
        rows.clear()
        at = 0
        for feed in feeds:
            rows.extend(range(at + feed.count, at + feed.size))
            at += feed.size
        return run(feeds)

    forward._run = noting  # type: ignore[method-assign]
    return lambda: list(rows)


def float_store(engine: EmbeddedEngine) -> KVStore:
    """The engine's keys and values as plain tensors. UnsupportedError where they are quantised."""
    store = engine._forward.store
    if not isinstance(store, KVStore):
        raise UnsupportedError("this fault writes plain keys and values", hint='kv_dtype="auto"')
    return store
