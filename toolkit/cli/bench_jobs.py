"""Command bench jobs: what extraction jobs cost, on an engine and without one."""

from __future__ import annotations

from typing import Any

import click

from toolkit.cli.options import engine_options, json_option, opened
from toolkit.cli.output import console
from toolkit.cli.verdict import no_verdict, verdict

PARTS = ("throughput", "overhead", "linearity", "memory")


@click.command(short_help="Extraction jobs: records per second, overhead, linearity, memory.")
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, help="Repeatable.  [default: all]")
@click.option("--records", type=click.IntRange(1), default=48, show_default=True, help="Records at each number in flight.")
@click.option("--in-flight", type=click.IntRange(1, 256), multiple=True, help="Repeatable.  [default: 1, 4, 16]")
@click.option("--width", type=click.IntRange(1, 256), default=4, show_default=True, help="Hypotheses of a record.")
@click.option(
    "--most", type=click.IntRange(10), default=10_000, show_default=True, help="Records of the longest job on the tiny engine."
)
@click.option(
    "--many", type=click.IntRange(50), default=100_000, show_default=True, help="Records for memory; a fiftieth for overhead."
)
@engine_options
@json_option
def jobs(
    as_json: bool, parts: tuple[Any, ...], records: int, in_flight: tuple[int, ...], width: int, most: int, many: int, **options: Any
) -> int:  # fmt: skip
    """Exit code 1 where records at several in flight are not those of one at a time; no throughput is given then."""
    from toolkit.bench.jobs import run

    with no_verdict(), opened(options) as engine:
        result = run(
            engine, parts=parts or PARTS, records=records, in_flight=in_flight or (1, 4, 16), width=width, most=most, many=many,
            console=console(),
        )  # fmt: skip
    return verdict(result, as_json)
