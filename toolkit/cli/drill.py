"""Command bench drill: is what the guard promises kept while speculation is broken on purpose, and what does the guard cost?"""

from __future__ import annotations

from typing import Any

import click

from toolkit.cli.options import engine_options, json_option, opened
from toolkit.cli.output import console
from toolkit.cli.verdict import verdict
from toolkit.errors import UsageError


@click.command(short_help="Thousands of texts through broken speculation: what gets past the guard?")
@click.option("--count", type=click.IntRange(1), default=10_000, show_default=True, help="Texts, over all faults together.")
@click.option(
    "--audit", type=click.FloatRange(0, 1), default=0.5, show_default=True, help="Share of the texts that is audited."
)
@click.option("--overhead", is_flag=True, help="Measure the guard's share of decode time instead, on --model.")
@engine_options
@json_option
def drill(as_json: bool, count: int, audit: float, overhead: bool, **options: Any) -> int:
    """A hand-written tiny model copies JSON documents while each fault is planted; exit code 1 if one invalid text passed as valid."""
    if overhead:
        from toolkit.bench.guard_cost import run as measure

        with opened({**options, "drafter": "ngram"}) as engine:
            return verdict(measure(engine, console=console()), as_json)
    from toolkit.gate.drill import run

    if options["engine"] != "embedded":
        raise UsageError(
            f"--engine {options['engine']}: faults are planted into an engine of this process", hint="leave it out"
        )
    return verdict(run(count=count, audit=audit, console=console()), as_json)
