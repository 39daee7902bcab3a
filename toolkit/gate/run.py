"""Run: the whole gate over a pair of open engines.

    identity -> canaries -> greedy equality -> sampled frequencies -> books -> verdict

In: two engines that are open (and stay so), the tier.   Out: a Report.
Knows nothing about: how a part checks, commands.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from toolkit.contracts import Engine, require
from toolkit.gate.arm import Arm, SilentError
from toolkit.gate.greedy import compare_greedy
from toolkit.gate.report import Findings, Report

Tier = Literal["quick", "full"]


def run_gate(
    baseline: Engine, candidate: Engine, *, tier: Tier = "quick", seed: int = 0, tell: Callable[[str], None] | None = None
) -> Report:
    """Does the candidate give what the baseline gives? `tell` hears one line a part; a fault of an engine is a verdict, never raised."""
    require(tier in ("quick", "full"), "tier", tier, "quick or full")
    require(isinstance(seed, int) and seed >= 0, "seed", seed, "an integer >= 0")
    began = time.perf_counter()
    findings = Findings()
    arms = Arm("baseline", baseline), Arm("candidate", candidate)
    parts: dict[str, object] = {}
    try:
        parts["equivalence"] = {"greedy": compare_greedy(*arms, findings, tier=tier, seed=seed)}
    except SilentError as error:
        findings.blocks.append(str(error))
    return Report(
        verdict=findings.verdict, reasons=findings.reasons, tier=tier, seed=seed, not_checkable=tuple(findings.not_checkable),
        seconds=time.perf_counter() - began, **parts,  # type: ignore[arg-type]
    )  # fmt: skip
