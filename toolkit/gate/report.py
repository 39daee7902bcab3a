"""Report: what the gate says about a pair of engines, with everything it says so by.

    PASS           every canary, test and book of the candidate is in order, and its speculation was seen at work
    HOLD           something is wrong with the candidate: `reasons` has all of it
    INCONCLUSIVE   nothing can be said: the pair is not comparable, the baseline does not repeat itself, a timeout, idle speculation

In: findings of the parts.   Out: a frozen record, JSON.
Knows nothing about: engines, how anything was checked.
Invariants: what could not be checked is listed in `not_checkable`, it is never part of a PASS. No address of a server stands in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from toolkit.contracts import require

Verdict = Literal["PASS", "HOLD", "INCONCLUSIVE"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`identity` {baseline, candidate, hash}; `canaries` [{name, result, why}]; all other parts are plain JSON objects."""

    verdict: Verdict
    reasons: tuple[str, ...]
    tier: str
    seed: int
    identity: Mapping[str, Any] = field(default_factory=dict)
    canaries: tuple[Mapping[str, Any], ...] = ()
    equivalence: Mapping[str, Any] = field(default_factory=dict)
    accounting: Mapping[str, Any] = field(default_factory=dict)
    latency: Mapping[str, Any] = field(default_factory=dict)
    faults: Mapping[str, Any] = field(default_factory=dict)  # of `toolkit gate --teeth`
    not_checkable: tuple[str, ...] = ()
    seconds: float = 0.0

    def __post_init__(self) -> None:
        require(self.verdict in get_args(Verdict), "verdict", self.verdict, ", ".join(get_args(Verdict)))
        require(bool(self.reasons) == (self.verdict != "PASS"), "reasons", self.reasons, "some exactly where it is no PASS")

    def to_json(self) -> dict[str, Any]:
        """The record as a plain JSON object, the verdict first."""
        return asdict(self)


def discreet(told: Any, names: Mapping[str, str]) -> Any:
    """JSON in which every address in `names` is replaced by whose it is, in errors that quote it: a report is there to be shown."""
    if isinstance(told, Mapping):
        return {key: discreet(value, names) for key, value in told.items()}
    if isinstance(told, list | tuple):
        return type(told)(discreet(value, names) for value in told)
    if not isinstance(told, str):
        return told
    for address in sorted(names, key=len, reverse=True):  # one may be the beginning of another
        told = told.replace(address, names[address])
    return told


@dataclass(slots=True)
class Findings:
    """What the parts of the gate have found so far."""

    blocks: list[str] = field(default_factory=list)  # nothing can be said about the candidate
    holds: list[str] = field(default_factory=list)  # the candidate is wrong
    doubts: list[str] = field(default_factory=list)  # nothing is wrong, and too little was shown
    not_checkable: list[str] = field(default_factory=list)
    is_hasty: bool = False  # one fault is enough: nobody asks for all

    @property
    def is_enough(self) -> bool:
        """Whether the parts may stop looking."""
        return self.is_hasty and bool(self.holds)

    @property
    def verdict(self) -> Verdict:
        """A pair that cannot be compared says nothing, whatever else was seen; a fault outweighs a doubt."""
        if self.blocks:
            return "INCONCLUSIVE"
        if self.holds:
            return "HOLD"
        return "INCONCLUSIVE" if self.doubts else "PASS"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Every reason of the verdict, the heaviest first, each once."""
        return tuple(dict.fromkeys([*self.blocks, *self.holds, *self.doubts]))


def summary(reports: Sequence[Report]) -> dict[str, Any]:
    """Of runs that differ in their seed: how many passed, which did not and why, the least likely of all their comparisons."""
    settings = [
        (row["p"], each.seed, row) for each in reports for row in each.equivalence.get("sampled", {}).get("settings", ())
    ]
    least = min(settings, key=lambda each: each[:2], default=None)
    return {
        "run": len(reports),
        "passed": sum(each.verdict == "PASS" for each in reports),
        "others": [{"seed": each.seed, "verdict": each.verdict, "why": each.reasons[0]} for each in reports if each.reasons],
        "comparisons": len(settings),
        "least_p": None if least is None else {"p": least[0], "seed": least[1], "setting": least[2]["name"], "alarm": least[2]["alarm"]},
        "seconds": sum(each.seconds for each in reports),
    }  # fmt: skip
