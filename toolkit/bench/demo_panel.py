"""Demo panel: one request of the demo as it looks in a terminal, and the closing table.

In: the demo's record of a request (plain data).   Out: rich renderables.
Knows nothing about: engines, data sets, how right was decided.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from toolkit.contracts import Json


def panel(record: Mapping[str, Any], width: int, number: str) -> Panel:
    """Request, both answers with marks, the other hypotheses, the confidence of every field."""
    greedy, beam = record["greedy"], record["beam"]
    table = Table.grid(padding=(0, 1))
    for justify in ("left", "left", "left", "right"):
        table.add_column(justify=justify, no_wrap=justify == "right", overflow="fold")
    shown = compact(greedy["value"]) if greedy["valid"] else greedy["text"] + " (cut off or not valid)"
    table.add_row("greedy", mark(greedy["right"]), escape(shown), f"{greedy['sum_logprob']:.2f}" if greedy["valid"] else "-")
    if not beam["valid"]:
        table.add_row(f"beam {width}", mark(False), "no valid answer", "")
    for place, hypothesis in enumerate(beam["alternatives"]):
        style = "" if place == 0 else "[dim]"
        name = f"[bold]beam {width}[/]" if place == 0 else f"[dim]{place + 1}.[/]"
        table.add_row(
            name, mark(hypothesis["right"]), style + escape(compact(hypothesis["value"])), f"{hypothesis['sum_logprob']:.2f}"
        )
    fields = "  ".join(f"{escape(path or '/')} {shade(field['product'])}" for path, field in beam["confidence"].items())
    return Panel(
        Group(f"[italic]{escape(record['text'])}[/]", table, f"[dim]confidence[/]  {fields or '-'}"),
        title=f"{number}  {record['id']}",
        subtitle="[dim]right column: log-probability of the answer's tokens (other tokens can spell the same value)[/]"
        if number.startswith("1/")
        else None,
        title_align="left",
        border_style="green" if beam["right"] else "yellow" if any(h["right"] for h in beam["alternatives"]) else "red",
    )


def closing(console: Console, right: Mapping[str, int], width: int, of: int, seconds: float) -> None:
    names = {"greedy": "greedy", f"beam{width}": f"beam {width}", f"top{width}": f"among the {width} of the beam"}
    table = Table(title=f"right answers of {of}, {seconds:.0f} s", title_justify="left")
    for name in names.values():
        table.add_column(name, justify="right")
    table.add_row(*(str(right[name]) for name in names))
    console.print(table)


def compact(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def mark(right: bool) -> str:
    return "[bold green]✔[/]" if right else "[bold red]✘[/]"


def shade(share: float) -> str:
    colour = "green" if share >= 0.8 else "yellow" if share >= 0.4 else "red"
    return f"[{colour}]{share:.2f}[/]"
