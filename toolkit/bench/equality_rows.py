"""Equality rows: what came of one arm under one grammar and batch, and why it may not pass.

In: counts and places.   Out: a record for JSON, complaints.
Knows nothing about: engines, how texts are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from toolkit.contracts import Json

_SHOWN = 20  # differences that are told one by one


class Place(NamedTuple):
    """A text that is not as plain decoding wrote it: from token `at` on, whose two candidates are `nats` apart."""

    prompt: int
    at: int
    expected: int | None
    found: int | None
    nats: float


@dataclass(slots=True)
class Setting:
    """What came of one arm under one grammar and batch."""

    arm: str
    grammar: str
    batch: int
    texts: int = 0
    tokens: int = 0
    equal: int = 0
    ties: list[Place] = field(default_factory=list)
    differ: list[Place] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.arm}, {self.grammar}, batch {self.batch}"

    def told(self) -> dict[str, Json]:
        """Everything, for `of`."""
        return {
            "arm": self.arm, "grammar": self.grammar, "batch": self.batch, "texts": self.texts, "tokens": self.tokens, "equal": self.equal,
            "ties": [list(each) for each in self.ties], "differ": [list(each) for each in self.differ], "counts": dict(self.counts),
            "notes": list(self.notes),
        }  # fmt: skip

    @classmethod
    def of(cls, told: Mapping[str, Json]) -> Setting:
        """The setting that `told` told. ValueError, KeyError or TypeError for what is none."""
        setting = cls(**{**told, "ties": [], "differ": [], "counts": Counter(told["counts"])})
        setting.ties, setting.differ = ([Place(*each) for each in told[name]] for name in ("ties", "differ"))
        numbers = [setting.batch, setting.texts, setting.tokens, setting.equal, *setting.counts.values()]
        numbers += [number for place in setting.ties + setting.differ for number in (place.prompt, place.at)]
        words = [setting.arm, setting.grammar, *setting.notes, *setting.counts]
        if not (all(type(each) is int and each >= 0 for each in numbers) and all(type(each) is str for each in words)):
            raise ValueError("no setting")
        if any(not isinstance(place.nats, int | float) for place in setting.ties + setting.differ):
            raise ValueError("no setting")
        return setting

    def complaints(self) -> list[str]:
        """Why it does not pass; none where it does."""
        found = []
        if self.differ:
            first = self.differ[0]
            found.append(
                f"{len(self.differ)} of {self.texts} texts differ from plain decoding, first prompt {first.prompt} at token {first.at}: "
                f"{first.found} for {first.expected}, {first.nats:.3g} nats apart"
            )
        if self.counts["repaired"]:
            found.append(f"speculation was caught and repaired in {self.counts['repaired']} of {self.texts} texts")
        if not self.counts["proposed"]:
            found.append("nothing was proposed: the arm shows nothing")
        found += dict.fromkeys(self.notes)
        return [f"{self.name}: {why}" for why in found]

    def record(self) -> dict[str, Any]:
        passes = self.counts["passes"]
        return {
            "arm": self.arm, "grammar": self.grammar, "batch": self.batch, "texts": self.texts, "tokens": self.tokens,
            "equal": self.equal, "ties": [each._asdict() for each in self.ties[:_SHOWN]], "tie_count": len(self.ties),
            "differ": [each._asdict() for each in self.differ[:_SHOWN]], "differ_count": len(self.differ),
            "repaired": self.counts["repaired"], "proposed": self.counts["proposed"], "accepted": self.counts["accepted"],
            "tokens_per_pass": self.tokens / passes if passes else 0.0,
        }  # fmt: skip
