"""Figures: do the numbers of a speculative run that somebody published add up?

    emitted      1 + passes + accepted - trimmed, passes = proposed / draft length, at most a draft is trimmed a request
    rate         (output tokens - 1) / (end to end - time to first token): the first token's time is left out, so must it be
    acceptance   above 98 % on text that nobody looked at for repetition says nothing about other text

In: a record of what was published, None for what was not.   Out: complaints in words, none where all adds up.
Knows nothing about: engines.
Source: 2211.17192, section 3.1 for what a pass emits; the definitions are those of toolkit/contracts.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolkit.contracts import require
from toolkit.gate.accounting import HIGH

_RATE = 5e-4  # relative difference at which two ways to count one token more or less part


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Counts of tokens and drafts, seconds, tokens a second; `draft` = tokens of a draft, `repetition` = share of the text that repeats."""

    output: int
    proposed: int
    accepted: int
    draft: int
    ttft_s: float | None = None
    e2e_s: float | None = None
    decode_tok_s: float | None = None
    requests: int = 1
    repetition: float | None = None

    def __post_init__(self) -> None:
        for name in ("output", "proposed", "draft", "requests"):
            require(getattr(self, name) > 0, name, getattr(self, name), "a number above 0")
        require(self.accepted >= 0, "accepted", self.accepted, "a number from 0 up")

    def complaints(self) -> list[str]:
        """Everything that does not add up."""
        return [*self._counts(), *self._rates(), *self._plausible()]

    def _counts(self) -> Iterator[str]:
        if self.accepted > self.proposed:
            yield f"{self.accepted} drafts were accepted and {self.proposed} proposed"
        passes, rest = divmod(self.proposed, self.draft)
        if rest:
            yield f"{self.proposed} proposals are no whole number of drafts of {self.draft}: the draft length was not constant"
        emitted = self.requests + passes + self.accepted
        if not 0 <= emitted - self.output <= self.requests * self.draft:
            yield (
                f"{self.proposed} proposals of {self.draft} are {passes} passes; with {self.accepted} accepted they emit {emitted} tokens, "
                f"and the output has {self.output}: the counters cover something else than this run"
            )

    def _rates(self) -> Iterator[str]:
        if self.ttft_s is None or self.e2e_s is None or self.decode_tok_s is None:
            return
        seconds = self.e2e_s - self.ttft_s
        if seconds <= 0:
            yield f"the first token came after {self.ttft_s} s, the last one after {self.e2e_s} s"
            return
        right, naive = (self.output - self.requests) / seconds, self.output / seconds
        if abs(self.decode_tok_s - right) <= _RATE * right:
            return
        how = (
            "it counts the first token and leaves its time out"
            if abs(self.decode_tok_s - naive) <= _RATE * naive
            else "it is neither way to count"
        )
        yield f"the decode rate is {right:.2f} tokens a second, not {self.decode_tok_s:.2f}: {how}"

    def _plausible(self) -> Iterator[str]:
        share = self.accepted / self.proposed
        if share >= HIGH and (self.repetition is None or self.repetition >= 0.5):
            seen = (
                "nobody looked whether the text repeats itself"
                if self.repetition is None
                else f"{self.repetition:.0%} of the text repeats itself"
            )
            yield f"{share:.2%} of all drafts were accepted, and {seen}"
