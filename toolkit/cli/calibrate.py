"""Command calibrate: a job's confidences beside labels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.cli.kinds import place
from toolkit.cli.options import json_option
from toolkit.cli.output import console, emit
from toolkit.cli.verdict import no_verdict
from toolkit.contracts import Json

if TYPE_CHECKING:
    from rich.table import Table


@click.command(short_help="Are a job's confidences worth what they say?")
@click.argument("out", metavar="OUT", type=place())
@click.option(
    "--labels", required=True, type=place(exists=True, folders=False), help="JSON lines {id, value} of what is right."
)
@click.option("--bins", type=click.IntRange(1, 100), default=10, show_default=True, help="Rows of a reliability table.")
@click.option(
    "--target",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.95,
    show_default=True,
    help="Share to be right above the threshold.",
)
@json_option
def calibrate(out: Path, labels: Path, bins: int, target: float, as_json: bool) -> int:
    """Compare the values of OUT with labels: a reliability table for every field, and the confidence from which on it can be trusted."""
    from toolkit.jobs.calibrate import calibration

    with no_verdict():
        found = calibration(out, labels, bins=bins, target=target)
    screen = console(stderr=as_json)
    screen.print(_summary(found["fields"], target))
    for name, report in found["fields"].items():
        screen.print(_bins(name, report["bins"]))
    screen.print(f"{found['labelled']} of {found['records']} records have a label", highlight=False)
    if as_json:
        emit(found)
    return 0


def _summary(fields: Mapping[str, Json], target: float) -> Table:
    from rich.markup import escape
    from rich.table import Table

    head = ("field", "values", "right", "confidence", "ECE", "Brier", f"{target:.0%} right from")
    table = Table(*head, title="calibration", title_justify="left")
    for name, each in fields.items():
        numbers = (each[key] for key in ("accuracy", "confidence", "ece", "brier", "threshold"))
        table.add_row(
            escape(name or "(the value)"), str(each["count"]), *("-" if each is None else f"{each:.3f}" for each in numbers)
        )
    return table


def _bins(name: str, rows: list[Mapping[str, Json]]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table("confidence", "values", "mean", "right", title=escape(name or "(the value)"), title_justify="left")
    for row in rows:
        if row["count"]:
            span = f"{row['from']:.2f} to {row['to']:.2f}"
            table.add_row(span, str(row["count"]), f"{row['confidence']:.3f}", f"{row['accuracy']:.3f}")
    return table
