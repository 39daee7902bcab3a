"""Command explain scale: from the cost of a record to a million and a billion of them."""

from __future__ import annotations

from typing import Any

import click

from toolkit.bench.scale import Cost
from toolkit.bench.scale import scale as scale_of
from toolkit.cli.options import json_option
from toolkit.cli.output import console, emit
from toolkit.contracts import Json


@click.command(short_help="From the cost of a record to a million and a billion of them.")
@click.option(
    "--seconds-per-record", type=float, required=True, help="Of one machine that is kept busy: elapsed / records of a job."
)
@click.option("--efficiency", type=float, default=0.9, show_default=True, help="Share of it that many machines keep.")
@click.option(
    "--writer-s", type=float, default=0.0005, show_default=True, help="Seconds a line, of the one process that writes."
)
@click.option("--price-per-hour", type=float, default=0.0, show_default=True, help="Of a machine.")
@click.option("--watts", type=float, default=0.0, show_default=True, help="Of a machine that works.")
@click.option("--bytes-per-record", type=float, default=2000.0, show_default=True, help="Of a line on the disk.")
@click.option("--days", type=float, default=1.0, show_default=True, help="How long it may take.")
@json_option
def scale(days: float, as_json: bool, **cost: float) -> None:
    """Machine hours, price, energy and disk for a million and a billion records, and how long it takes with how many machines.

    Nothing is measured: `toolkit bench jobs`, or the summary of a job of yours (seconds / records), says what a record costs.
    """
    found = scale_of(Cost(**cost), days=days)
    if as_json:
        emit(found)
        return
    out = console(stderr=False)
    for each in found["amounts"]:
        out.print(_title(each, found), highlight=False, soft_wrap=True)
        out.print(_table(each))


def _title(amount: dict[str, Json], found: dict[str, Json]) -> str:
    cost, wanted = found["cost"], amount["wanted"]["machines"]
    parts = [f"{hours(amount['machine_hours'])} of one machine", f"{amount['output_bytes'] / 1e9:,.1f} GB of lines"]
    parts += [f"{amount['price']:,.2f} in money"] if cost["price_per_hour"] else []
    parts += [f"{amount['kwh']:,.1f} kWh"] if cost["watts"] else []
    return f"{amount['records']:,} records: {', '.join(parts)}; within {hours(24 * found['days'])}: {wanted:,} machines"


def _table(amount: dict[str, Json]) -> Any:
    from rich.table import Table

    table = Table()
    for name in ("machines", "takes", "as one job", "jobs, for one writer not to be the bound"):
        table.add_column(name, justify="right")
    for row in amount["fleets"]:
        table.add_row(f"{row['machines']:,}", hours(row["hours"]), hours(row["hours_in_one_job"]), str(row["jobs"]))
    return table


def hours(amount: float) -> str:
    """In the unit that reads best."""
    units = ((24 * 365, "years"), (48, "days"), (1, "hours"), (1 / 60, "minutes"), (0, "seconds"))
    size = {"years": 24 * 365, "days": 24, "hours": 1, "minutes": 1 / 60, "seconds": 1 / 3600}
    name = next(name for least, name in units if amount >= least)
    return f"{amount / size[name]:,.1f} {name}"
