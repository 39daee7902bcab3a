"""Fault: an event of a stream comes twice."""

from __future__ import annotations

from toolkit.contracts import Delta, Event
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.intake import Sink
from toolkit.gate.faults.plant import on_events

NAME = "event doubled"
WHY = "a retried or re-sent chunk reaches the client twice: `<tool_call><tool_call>` (vllm#40831)"
CATCH = "greedy texts"


def doubling(sink: Sink) -> Sink:
    seen = 0

    def tell(event: Event) -> None:
        nonlocal seen
        seen += isinstance(event, Delta)
        sink(event)
        if isinstance(event, Delta) and seen == 2:
            sink(event)

    return tell


def break_(engine: EmbeddedEngine) -> None:
    on_events(engine, doubling)
