"""Equality report: the table of an equality run for people.

In: the result of `equality.run`.   Out: text on the console.
Knows nothing about: how texts were compared.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console

from toolkit.bench import tables
from toolkit.engine.card import line

HEAD = ("arm", "grammar", "batch", "texts", "tokens", "equal", "ties", "differ", "repaired", "accepted", "tokens a pass")


def show(console: Console, result: dict[str, Any]) -> None:
    """The table, the verdict, the machine."""
    tables.show(console, "greedy speculation against plain decoding", HEAD, [_row(each) for each in result["settings"]])
    console.print(f"{result['verdict']}: {result['prompts']} prompts, at most {result['tokens']} tokens each", markup=False)
    for why in result["reasons"]:
        console.print(f"  - {why}", markup=False)
    console.print(line(result["card"]), markup=False)


def _row(setting: dict[str, Any]) -> tuple[str, ...]:
    proposed = setting["proposed"]
    share = f"{setting['accepted'] / proposed:.3f}" if proposed else "-"
    counts = (setting[name] for name in ("batch", "texts", "tokens", "equal", "tie_count", "differ_count", "repaired"))
    return (setting["arm"], setting["grammar"], *map(str, counts), share, f"{setting['tokens_per_pass']:.2f}")
