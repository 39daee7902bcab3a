"""Run: the whole gate over a pair of open engines.

    identity -> canaries -> greedy equality -> ends in drafts -> sampled frequencies -> books -> verdict

In: two engines that are open (and stay so), the tier.   Out: a Report.
A draft that is left to measurement is fixed while the gate runs: what the measurement chooses never changes an output.
Knows nothing about: how a part checks, commands.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Literal

from toolkit.contracts import Engine, require
from toolkit.gate.accounting import account, counters
from toolkit.gate.arm import Arm, Memory, SilentError
from toolkit.gate.canary_runs import run_canaries
from toolkit.gate.ends import check_ends
from toolkit.gate.greedy import compare_greedy
from toolkit.gate.identity import differences, identity, key, probed, under_test, untold
from toolkit.gate.latency import latency
from toolkit.gate.report import Findings, Report, discreet
from toolkit.gate.sampled import compare_sampled

DRAFT = {"tokens": 4, "nodes": 6}  # of engines that leave it to measurement
Tier = Literal["quick", "full"]
BOOKS = "books"
UNKNOWN = "unknown"  # of servers that do not tell what guesses for them


def run_gate(
    baseline: Engine, candidate: Engine, *, tier: Tier = "quick", seed: int = 0, tell: Callable[[str], None] | None = None,
    memory: Memory | None = None, first: str = "",
) -> Report:  # fmt: skip
    """Does the candidate give what the baseline gives? `tell` hears one line a part; a fault of an engine is a verdict, never raised.

    `memory`: a dict that is given to several runs with one and the same baseline keeps that one's answers, which are asked for once.
    `first`: a part that goes before the others, and the first fault ends the run: for those who ask whether there is one, not for all.
    """
    require(tier in ("quick", "full"), "tier", tier, "quick or full")
    require(isinstance(seed, int) and seed >= 0, "seed", seed, "an integer >= 0")
    began = time.perf_counter()
    findings = Findings(is_hasty=bool(first))
    say = tell or (lambda line: None)
    parts: dict[str, Any] = {}
    try:
        who = {"baseline": identity(baseline), "candidate": identity(candidate)}
        findings.blocks += [*differences(*who.values()), *probed(baseline, candidate)]
        parts["identity"] = who | {"hash": key(*who.values()), "untold": {name: untold(each) for name, each in who.items()}}
        if not findings.blocks:
            if not under_test(*who.values()) and who["candidate"]["drafter"] != UNKNOWN:
                findings.doubts.append(
                    "nothing is under test: baseline and candidate are the same in all that they may differ in"
                )
            arms = Arm("baseline", baseline, memory=memory), Arm("candidate", candidate)
            with contextlib.ExitStack() as stack:
                for engine in (baseline, candidate):
                    if hasattr(engine, "drafting"):  # by measurement a drafter may do nothing here, which would prove nothing
                        stack.enter_context(engine.drafting(**DRAFT))
                parts |= _parts(*arms, findings, tier, seed, who["candidate"]["drafter"], say, first)
    except SilentError as error:
        findings.blocks.append(str(error))
    if findings.verdict != "PASS":
        parts.pop("latency", None)  # no speed without a PASS
    told = {"reasons": findings.reasons, "not_checkable": tuple(dict.fromkeys(findings.not_checkable)), **parts}
    pair = (("baseline", baseline), ("candidate", candidate))
    names = {url: f"({name})" for name, engine in pair for url in getattr(engine, "urls", ())}
    return Report(verdict=findings.verdict, tier=tier, seed=seed, seconds=time.perf_counter() - began, **discreet(told, names))


def _parts(
    baseline: Arm, candidate: Arm, findings: Findings, tier: Tier, seed: int, drafter: str, say: Callable[[str], None],
    first: str,
) -> dict[str, Any]:  # fmt: skip
    shared = getattr(baseline.engine, "engine", baseline.engine) is candidate.engine  # then its counters are those of both arms
    for arm in (baseline, candidate):
        arm.counters = counters(arm.engine) if arm.memory is None and not shared else {}
    both = (baseline, candidate, findings)
    found: dict[str, Any] = {"equivalence": {}}
    steps: dict[str, Callable[[], dict[str, Any]]] = {
        "canaries": lambda: {"canaries": tuple(run_canaries(*both, tier=tier))},
        "greedy texts": lambda: {
            "equivalence": {**found["equivalence"], "greedy": compare_greedy(*both, tier=tier, seed=seed)}
        },
        "ends": lambda: {"equivalence": {**found["equivalence"], "ends": check_ends(*both, tier=tier, seed=seed)}},
        "sampled texts": lambda: {
            "equivalence": {**found["equivalence"], "sampled": compare_sampled(*both, tier=tier, seed=seed)}
        },
        BOOKS: lambda: {"accounting": account(*both, drafter), "latency": latency(baseline, candidate)},
    }
    hasty = (first, BOOKS) if first else ()
    for name in (*hasty, *(name for name in steps if name != first)):
        say(name)
        found |= steps[name]()
        if first and name == BOOKS and findings.holds:
            break
    return found
