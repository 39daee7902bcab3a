"""Speculation rows: what one timed run gave, and why runs may forbid any talk of speed.

In: results of runs.   Out: records, complaints.
Knows nothing about: engines, how a table looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toolkit.bench.accounting import imbalance
from toolkit.bench.stats import median, quantile
from toolkit.contracts import Usage

PLAIN, PEER = "plain", "llamacpp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One timed run. same: as plain decoding, None = not compared; gap: nats between the two tokens where they part."""

    tokens: int
    decode_s: float
    ttft_s: float
    e2e_s: float
    usage: Usage
    same: bool | None = None
    gap: float = 0.0
    notes: tuple[str, ...] = ()
    asked: int = 0  # tokens that were asked for at most
    repetition: float = 0.0  # share of the text that stood in it before
    waits: tuple[float, ...] = ()  # seconds that each token after the first was waited for: those of a burst share its time

    @property
    def tok_s(self) -> float:
        """(tokens - 1) / (e2e - ttft); 0 where there is no second token."""
        return (self.tokens - 1) / self.decode_s if self.tokens > 1 and self.decode_s > 0 else 0.0


Row = dict[str, Sample]  # one prompt, by arm


class Waits:
    """Seconds that each token of a stream after its first was waited for: n tokens of one event share its time, and count n times.

    Tokens that come together with the first were not waited for.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last: float | None = None

    def hear(self, tokens: int, now: float) -> None:
        """An event of so many tokens came."""
        if not tokens:
            return
        if self._last is None:
            self.seconds += [0.0] * (tokens - 1)
        else:
            self.seconds += [(now - self._last) / tokens] * tokens
        self._last = now


def spread(seconds: Sequence[float]) -> dict[str, float] | None:
    """Half, and 95 of 100, are not longer; None of nothing."""
    return {"median": median(seconds), "p95": quantile(seconds, 0.95)} if seconds else None


def arms(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """The arms that ran, in the order of the tables: plain, `names`, the peer."""
    seen = {name for row in rows for name in row}
    return [name for name in (PLAIN, *names, PEER) if name in seen]


def complaints(rows: Mapping[str, Sequence[Row]], tie: float) -> list[str]:
    """Why no speed may be given; empty when it may. Texts may part where the two tokens are at most `tie` nats apart, 0 = nowhere."""
    found = []
    samples = [(kind, name, each) for kind, many in rows.items() for row in many for name, each in row.items()]
    for name in dict.fromkeys(name for _, name, _ in samples):
        mine = [(kind, each) for kind, arm, each in samples if arm == name]
        if apart := [kind for kind, each in mine if each.same is False and (tie == 0 or each.gap > tie)]:
            found.append(f"{name} differs from plain decoding on {len(apart)} of {len(mine)} texts, first of kind {apart[0]}")
        if off := [kind for kind, each in mine if imbalance(each.usage)]:
            found.append(f"the books of {name} do not balance on {len(off)} of {len(mine)} texts, first of kind {off[0]}")
    return found
