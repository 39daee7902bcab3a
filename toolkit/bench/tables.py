"""Tables: a measurement for people - rich tables in a terminal, Markdown between markers for the README.

In: result dicts of this package.   Out: text on the console (stderr), never on stdout.
Knows nothing about: how the figures came about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from toolkit.bench.task import Task
from toolkit.engine.card import line

HEAD = ("setting", "exact", "95 %", "top-n", "F1", "log-prob", "not delivered", "tokens", "passes", "s/record", "x greedy", "p")


def opening(console: Console, task: Task, records: int, card: dict[str, Any]) -> None:
    left_out = ", ".join(f"{count} {reason}" for reason, count in task.skipped.items()) or "none"
    console.print(
        f"[bold]{task.name}[/]: {records} of {len(task.items)} records; left out: {escape(left_out)}; "
        f"bounds: {escape(task.bounds)}, max_tokens {task.max_tokens}"
    )
    console.print(f"[dim]{escape(line(card))}[/]")


def closing(console: Console, result: dict[str, Any]) -> None:
    """The table, the verdict and the Markdown of an extraction run."""
    body = rows(result)
    show(console, f"{result['task']}, {result['records']} records", HEAD, body)
    verdict(console, result)
    console.print(markdown(f"bench-{result['task']}", HEAD, body), markup=False, highlight=False, soft_wrap=True)


def verdict(console: Console, result: dict[str, Any]) -> None:
    colour = "green" if result["verdict"] == "PASS" else "red"
    console.print(f"[bold {colour}]{result['verdict']}[/]" + ("" if result["verdict"] == "PASS" else ": seconds are withheld"))
    for reason in result["reasons"]:
        console.print(f"  - {escape(reason)}")


def rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for arm in result["arms"]:
        name, exact = arm["name"], arm["exact"]
        seconds, ratio, pair = arm.get("seconds"), result["ratios"].get(name), result["pairs"].get(name)
        low, high = exact["wilson95"]
        found.append(
            (
                name,
                f"{100 * exact['share']:.1f} % ({exact['n']})",
                f"{100 * low:.0f}-{100 * high:.0f}",
                f"{100 * arm['top']['share']:.1f} %",
                f"{arm['f1']['f1']:.3f}",
                "-" if arm["mean_sum_logprob"] is None else f"{arm['mean_sum_logprob']:.2f}",
                str(arm["not_delivered"]),
                f"{arm['tokens']:.1f}",
                f"{arm['passes']:.1f}",
                f"{seconds['median']:.2f}" if seconds else "withheld",
                f"{ratio:.2f}" if ratio else "-",
                f"{pair['sign_test_p']:.3g} ({pair['only_this_right']}:{pair['only_greedy_right']})" if pair else "-",
            )
        )
    return found


def show(console: Console, title: str, head: Sequence[str], body: Sequence[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(head):
        table.add_column(name, justify="left" if index == 0 else "right", no_wrap=index == 0)
    for row in body:
        table.add_row(*map(escape, row))
    console.print(table)


def for_pages(console: Console, name: str, head: Sequence[str], body: Sequence[Sequence[str]]) -> None:
    """The table as Markdown, where nobody looks: into a file or a pipe."""
    if not console.is_terminal:
        console.print(markdown(name, head, body), markup=False, highlight=False, soft_wrap=True)


def markdown(name: str, head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table between `<!-- name -->` markers, to paste over the one in the README."""
    lines = [list(head), ["---", *["---:"] * (len(head) - 1)], *map(list, body)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"<!-- {name} -->\n{table}\n<!-- /{name} -->"
