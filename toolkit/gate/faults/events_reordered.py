"""Fault: two events of a stream change places."""

from __future__ import annotations

from toolkit.contracts import Delta, Event
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.intake import Sink
from toolkit.gate.faults.plant import on_events

NAME = "events reordered"
WHY = "chunks of one text are sent by two workers (a proxy or a detokenizer pool without a sequence number)"
CATCH = "greedy texts"


def reordering(sink: Sink) -> Sink:
    seen, held = 0, [Delta("", 0, "")][:0]

    def tell(event: Event) -> None:
        nonlocal seen
        seen += isinstance(event, Delta)
        if isinstance(event, Delta) and seen == 2:
            held.append(event)
            return
        if isinstance(event, Delta):
            sink(event)
        while held:
            sink(held.pop())
        if not isinstance(event, Delta):
            sink(event)

    return tell


def break_(engine: EmbeddedEngine) -> None:
    on_events(engine, reordering)
