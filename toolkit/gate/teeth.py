"""Teeth: does the gate bite? Every planted fault has to be held, the intact engine has to pass with every seed.

    baseline    the tiny model, plain          one for all runs: its answers are remembered
    candidate   the same with the drafter of an arm, and a fault     one engine a fault, opened for it and closed after it

In: faults, how many seeds for the intact arms.   Out: JSON (verdict, rows, intact), a table.
Knows nothing about: how the gate or a fault works.
Invariants: HOLD if one fault is not held or one intact run does not pass. INCONCLUSIVE is no bite: a gate that could not look has
caught nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import Tensor

from toolkit.draft.cache import DraftCache
from toolkit.draft.model import KV_TOKENS, ModelSource
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.gate.arm import Memory
from toolkit.gate.asking import LIFT
from toolkit.gate.faults import FAULTS
from toolkit.gate.report import Report
from toolkit.gate.run import run_gate
from toolkit.model.decoder import Decoder
from toolkit.model.tiny import tiny_model

TREE = {"tokens": 3, "nodes": 6, "width": 2, "floor": 0.0}
ARMS: Mapping[str, tuple[str, Mapping[str, Any]]] = {  # drafter, its options
    "ngram": ("ngram", {"tokens": 4, "nodes": 8, "width": 3, "floor": 0.02, "min_match": 1}),
    "model": ("model", TREE),
    "drawn": ("model", {**TREE, "draw": True}),  # drafts a lettered target, see open_arm
    "flat": ("model", {**TREE, "width": 1, "draw": True}),  # drafts the target itself, but less sure
}
LIFTED = {"drawn": LIFT, "flat": 0.0}
FLAT = 1.5  # sharpness of the logits that those two draw from; the target's is 3
LETTERS = b"abcd"  # what the gate's sampled texts are drawn from
SEEDS = 3
COLUMNS = ("fault", "arm", "caught by", "verdict", "seconds")


def run(
    faults: Iterable[str] | None = None, *, seeds: int = SEEDS, is_hasty: bool = False, console: Console | None = None
) -> dict[str, Any]:
    """Run the gate over every fault, and `seeds` times over every arm without one.

    `is_hasty`: only the part that has to catch a fault, unless it does not; else all parts, and the table says who else did.
    """
    console = console or Console(stderr=True)
    began = time.perf_counter()
    memory: Memory = {}
    with EmbeddedEngine("tiny", format="float32") as baseline:
        rows = [_row(baseline, name, memory, console, is_hasty) for name in (FAULTS if faults is None else faults)]
        intact = [_intact(baseline, arm, seed, memory, console) for arm in ARMS for seed in range(seeds)]
    reasons = [f"the fault {row['fault']} was not held: {row['verdict']}" for row in rows if row["verdict"] != "HOLD"]
    reasons += [f"the intact arm {each['arm']} did not pass with seed {each['seed']}: {each['why']}" for each in intact if each["verdict"] != "PASS"]  # fmt: skip
    result = {
        "verdict": "HOLD" if reasons else "PASS", "reasons": reasons, "faults": rows, "intact": intact,
        "held": sum(row["verdict"] == "HOLD" for row in rows), "passed": sum(each["verdict"] == "PASS" for each in intact),
        "seconds": time.perf_counter() - began,
    }  # fmt: skip
    _show(console, result)
    return result


def arm_of(fault: str) -> str:
    """The arm that a fault is planted in."""
    return str(getattr(import_module(FAULTS[fault].partition(":")[0]), "ARM", "ngram"))


def catch_of(fault: str) -> str:
    """The part of the gate that has to catch a fault."""
    return str(import_module(FAULTS[fault].partition(":")[0]).CATCH)


def open_arm(arm: str) -> EmbeddedEngine:
    """A fresh engine over the tiny model with that arm's drafter."""
    drafter, options = ARMS[arm]
    engine = EmbeddedEngine("tiny", format="float32", drafter=drafter, draft=options)
    source = engine.parts[1]
    if arm in LIFTED and isinstance(source, ModelSource):
        source.cache = DraftCache(_Flatter(LIFTED[arm]), source.cache.vocab_size, KV_TOKENS)
    return engine


class _Flatter(Decoder):
    """The target, less sure and, by `lift` nats, fond of LETTERS: so its draws are often accepted and often refused."""

    def __init__(self, lift: float) -> None:
        base = tiny_model(sharpness=FLAT)
        super().__init__(base.config, base.embedding, base.blocks, base.norm, base.head.weight)
        self._lift = lift

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, V]."""
        rows = super().logits(hidden).clone()
        rows[:, list(LETTERS)] += self._lift
        return rows


def _row(baseline: EmbeddedEngine, fault: str, memory: Memory, console: Console, is_hasty: bool) -> dict[str, Any]:
    with open_arm(arm_of(fault)) as engine:
        FAULTS.load(fault)(engine)
        report = run_gate(baseline, engine, memory=memory, first=catch_of(fault) if is_hasty else "")
    row = {"fault": fault, "arm": arm_of(fault), "verdict": report.verdict, "caught_by": caught_by(report), "why": _why(report), "seconds": report.seconds}  # fmt: skip
    console.print(f"{fault}: {report.verdict}, {row['why']}", highlight=False, markup=False)
    return row


def _intact(baseline: EmbeddedEngine, arm: str, seed: int, memory: Memory, console: Console) -> dict[str, Any]:
    with open_arm(arm) as engine:
        report = run_gate(baseline, engine, seed=seed, memory=memory)
    console.print(f"intact, {arm}, seed {seed}: {report.verdict} {_why(report)}", highlight=False, markup=False)
    return {"arm": arm, "seed": seed, "verdict": report.verdict, "why": _why(report), "seconds": report.seconds}


def caught_by(report: Report) -> list[str]:
    """The parts of the gate that gave a reason, in the order in which they looked: what stands before a reason's colon."""
    return list(dict.fromkeys(reason.partition(":")[0] for reason in report.reasons))


def markdown(result: Mapping[str, Any]) -> str:
    """The table of a result for a page: a row a fault."""
    rows = [f"| {row['fault'].replace('_', ' ')} | {_caught(row, 2)} | {row['verdict']} |" for row in result["faults"]]
    total = (
        f"{result['held']} of {len(result['faults'])} faults held; intact: PASS {result['passed']} of {len(result['intact'])}."
    )
    return "\n".join(["| fault | caught by | verdict |", "|---|---|---|", *rows, "", total, ""])


def _caught(row: Mapping[str, Any], most: int) -> str:
    more = len(row["caught_by"]) - most
    return "; ".join(row["caught_by"][:most]) + (f"; {more} more" if more > 0 else "")


def _why(report: Report) -> str:
    return report.reasons[0] if report.reasons else ""


def _show(console: Console, result: Mapping[str, Any]) -> None:
    table = Table(*COLUMNS, title=f"teeth: {result['held']} of {len(result['faults'])} faults held")
    for row in result["faults"]:
        table.add_row(row["fault"].replace("_", " "), row["arm"], _caught(row, 3), row["verdict"], f"{row['seconds']:.1f}")
    console.print(table)
    console.print(f"intact: PASS {result['passed']} of {len(result['intact'])}")
    for why in result["reasons"]:
        console.print(f"HOLD {why}", markup=False, style="red")
