"""Plain: the same engine without its drafter, as the baseline of its own gate - one model in memory, two arms.

Knows nothing about: what is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from toolkit.contracts import Event, Request


class Plain:
    """Everything of the engine, each request with `speculate` False. Closing it is the engine's owner's."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    @property
    def parts(self) -> tuple[Any, None]:
        """The engine's decoder, and no drafter."""
        return self.engine.parts[0], None

    @property
    def metrics(self) -> None:
        """None: the engine's counters are those of both arms together."""
        return

    def generate(self, requests: Iterable[Request]) -> Iterator[Event]:
        """Without speculation."""
        events: Iterator[Event] = self.engine.generate(replace(each, speculate=False) for each in requests)
        return events
