"""Bound: arms of a benchmark whose speed may be printed - those that have a PASS of the gate as they are now.

In: open engines by arm.   Out: those with a PASS, and for each arm the record of its gate.
A kept PASS counts where model, numbers, drafter, versions, machine and canaries are the same; else the quick gate runs here, the
engine with its drafter against itself without. Knows nothing about: what is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.contracts import Engine, Json
from toolkit.errors import EngineError


def passed(engines: Mapping[str, Engine], out: Any) -> tuple[dict[str, Engine], dict[str, dict[str, Json]]]:
    """(engines with a PASS, {arm: {verdict, hash, tier, reasons}})."""
    from toolkit.gate.identity import identity, key
    from toolkit.gate.passes import found, keep
    from toolkit.gate.plain import Plain
    from toolkit.gate.run import run_gate

    kept: dict[str, Engine] = {}
    records: dict[str, dict[str, Json]] = {}
    for name, engine in engines.items():
        plain: Any = Plain(engine)
        mark = key(identity(plain), identity(engine))
        known = found(mark)
        if known is None:
            out.print(f"{name}: no kept PASS, the quick gate runs", markup=False)
            report = run_gate(plain, engine)
            try:
                keep(report)
            except EngineError as error:
                out.print(str(error), markup=False)
            known = report.to_json()
        records[name] = {"verdict": known["verdict"], "hash": mark, "tier": known["tier"], "reasons": list(known["reasons"])}
        if known["verdict"] == "PASS":
            kept[name] = engine
        else:
            out.print(f"{name}: {known['verdict']}, its speed is withheld", markup=False)
    return kept, records


def told(result: dict[str, Json], records: Mapping[str, Mapping[str, Json]]) -> dict[str, Json]:
    """A measurement's result with the gate's records; HOLD where an arm has no PASS."""
    held = [
        f"{name} is not timed: the gate says {each['verdict']}: {each['reasons'][0]}"
        for name, each in records.items()
        if each["verdict"] != "PASS"
    ]
    verdict = "HOLD" if held else result["verdict"]
    return {**result, "verdict": verdict, "reasons": [*result["reasons"], *held], "gate": dict(records)}


def nothing(bench: str, records: Mapping[str, Mapping[str, Json]]) -> dict[str, Json]:
    """The result where no arm may be timed."""
    return told(
        {"bench": bench, "verdict": "HOLD", "reasons": [], "kinds": {}, "arms": [], "ratios": {}, "ceiling": {}}, records
    )
