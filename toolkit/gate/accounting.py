"""Accounting: the books of everything both arms said, their totals, and whether speculation was at work at all.

In: arms after the other parts have asked them.   Out: JSON. Findings: books that do not add up hold; idle speculation is a doubt.
Knows nothing about: texts.
Invariants: speculation is proven by counters that moved, in every part that could be asked for, never by an option or a flag.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.engine.repeats import repetition
from toolkit.gate.arm import Answer, Arm
from toolkit.gate.books import complaints, totals
from toolkit.gate.report import Findings

HIGH = 0.98  # acceptance that is rarely real
REPETITIVE = 0.5  # share of a text's four-token windows that came before in it
FOREIGN = 0.01  # share of first drafts that a drafter for this model exceeds on any text
_MANY = 200  # first drafts from which that says something
_FEW = 50  # drafts from which a share says nothing
_SHOWN = 6
_TOLD = {
    "toolkit_tokens_total": ("output_tokens", {"direction": "output"}),
    "toolkit_passes_total": ("verify_passes", {"kind": "verify"}),
}


def account(baseline: Arm, candidate: Arm, findings: Findings, drafter: str) -> dict[str, Any]:
    """Check every answer; `drafter` is what the candidate says guesses for it."""
    found: dict[str, Any] = {}
    for arm, reasons in ((baseline, findings.blocks), (candidate, findings.holds)):
        wrong = [(why, what) for what, answer in arm.answers for why in complaints(answer)]
        seen, where = Counter(why for why, _ in wrong), dict(reversed(wrong))
        for why, count in list(seen.items())[:_SHOWN]:
            reasons.append(f"books of the {arm.name}, {where[why]}: {why}" + (f" ({count} answers)" if count > 1 else ""))
        found[arm.name] = totals([answer for _, answer in arm.answers])
        reasons += [f"books of the {arm.name}: {why}" for why in _exported(arm, found[arm.name])]
    parts = dict.fromkeys(what.partition(",")[0] for what, _ in candidate.answers)
    found["by_part"] = {part: totals([a for what, a in candidate.answers if what.partition(",")[0] == part]) for part in parts}
    found["in_effect"] = _in_effect(found["candidate"], drafter)
    found["flags"] = flags([answer for _, answer in candidate.answers])
    found["drafts"] = drafts = _drafts(candidate)
    if drafts and drafts["accepted"] > drafts["proposed"]:
        findings.holds.append(f"the candidate's counters say {drafts['accepted']:g} drafts accepted of {drafts['proposed']:g}")
    if drafter != "none" and not drafts.get("accepted"):
        findings.doubts += idle(found["by_part"], drafter)
        findings.holds += foreign(found["candidate"], drafter)
    return found


def _in_effect(whole: Mapping[str, Any], drafter: str) -> dict[str, Any]:
    """What speculation did, whatever it was set to."""
    passes = whole["verify_passes"]
    mean = whole["proposed"] / passes if passes else None
    return {
        "drafter": drafter,
        "longest_draft": len(whole["proposed_by_position"]),
        "mean_draft": mean,
        "verify_passes": passes,
    }


def idle(parts: Mapping[str, Mapping[str, Any]], drafter: str) -> list[str]:
    """Parts in which the drafter did nothing."""
    return [
        f"speculation ({drafter}) is not proven active in the part {part}: " + (f"none of {row['proposed']} drafts was accepted" if row["proposed"] else "no draft was counted")
        for part, row in parts.items()
        if row["output_tokens"] and not row["accepted"]
    ]  # fmt: skip


def foreign(row: Mapping[str, Any], drafter: str) -> list[str]:
    """A drafter that is as good as none: its head or its vocabulary is that of another model, and every pass pays for it."""
    tried, taken = (sum(row[name][:1]) for name in ("proposed_by_position", "accepted_by_position"))
    if tried < _MANY or taken >= FOREIGN * tried:
        return []
    return [f"the drafter {drafter} does not know this model: {taken} of {tried} first drafts were accepted"]


def flags(answers: Sequence[Answer]) -> list[str]:
    """Acceptance that is implausibly high on texts that repeat themselves: its speed says nothing about other texts."""
    found = []
    for answer in answers:
        for result in answer.samples[:1]:
            usage = result.usage
            share = repetition(result.token_ids)
            if (
                answer.request.sampling.n == 1
                and usage.proposed >= _FEW
                and usage.accepted >= HIGH * usage.proposed
                and share >= REPETITIVE
            ):
                found.append(
                    f"{usage.accepted} of {usage.proposed} drafts accepted on a text of which {share:.0%} repeats itself"
                )
    return found[:_SHOWN]


def _drafts(arm: Arm) -> dict[str, float]:
    """By how much the counters of a server rose that tells of drafts in no other way."""
    now = arm.engine.drafts() if hasattr(arm.engine, "drafts") else {}
    return {name: count - arm.drafts.get(name, 0.0) for name, count in now.items()}


def _exported(arm: Arm, found: Mapping[str, Any]) -> list[str]:
    """Counters that the engine exports, since the arm was made, against the sum of its answers."""
    if not arm.counters:
        return []
    now = counters(arm.engine)
    pairs = [(name, now[name] - arm.counters[name], found[ours]) for name, (ours, _) in _TOLD.items()]
    return [f"{name} rose by {rose:g}, its answers say {said}" for name, rose, said in pairs if rose != said]


def counters(engine: Any) -> dict[str, float]:
    """Those exported counters that answers must explain; {} where the engine exports none."""
    metrics = getattr(engine, "metrics", None)
    return {} if metrics is None else {name: metrics.value(name, **labels) for name, (_, labels) in _TOLD.items()}
