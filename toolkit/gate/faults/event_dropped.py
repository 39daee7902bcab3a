"""Fault: an event of a stream is lost."""

from __future__ import annotations

from toolkit.contracts import Delta, Event
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.intake import Sink
from toolkit.gate.faults.plant import on_events

NAME = "event dropped"
WHY = "a stream and its whole text differ: a delta between the reasoning and a tool call vanished (vllm#42781; minefield, trap 138)"
CATCH = "greedy texts"


def dropping(sink: Sink) -> Sink:
    seen = 0

    def tell(event: Event) -> None:
        nonlocal seen
        seen += isinstance(event, Delta)
        if not (isinstance(event, Delta) and seen == 2):
            sink(event)

    return tell


def break_(engine: EmbeddedEngine) -> None:
    on_events(engine, dropping)
