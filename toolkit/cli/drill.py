"""Command bench drill: is what the guard promises kept while speculation is broken on purpose, and what does the guard cost?"""

from __future__ import annotations

import click

from toolkit.cli.kinds import TEXT
from toolkit.cli.options import json_option
from toolkit.cli.output import console
from toolkit.cli.verdict import no_verdict, verdict
from toolkit.errors import UsageError

COUNT, AUDIT = 10_000, 0.5


@click.command(short_help="Thousands of texts through broken speculation: what gets past the guard?")
@click.option("--count", type=click.IntRange(1), help=f"Texts, over all faults together.  [default: {COUNT}]")
@click.option("--audit", type=click.FloatRange(0, 1), help=f"Share of the texts that is audited.  [default: {AUDIT}]")
@click.option("--overhead", is_flag=True, help="Measure the guard's share of decode time instead.")
@click.option("--model", type=TEXT, help="What the overhead is measured on.  [default: smollm2]")
@json_option
def drill(as_json: bool, count: int | None, audit: float | None, overhead: bool, model: str | None) -> int:
    """A hand-written tiny model copies JSON documents while each fault is planted; exit code 1 if one invalid text passed as valid."""
    for name, value, fits in (("--count", count, not overhead), ("--audit", audit, not overhead), ("--model", model, overhead)):
        if value is not None and not fits:
            raise UsageError(f"{name} says nothing {'with' if overhead else 'without'} --overhead", hint="leave it out")
    if overhead:
        return _overhead(model or "smollm2", as_json)
    from toolkit.gate.drill import run

    texts, share = COUNT if count is None else count, AUDIT if audit is None else audit
    return verdict(run(count=texts, audit=share, console=console()), as_json)


def _overhead(model: str, as_json: bool) -> int:
    from toolkit.bench.guard_cost import run
    from toolkit.engine.embedded import EmbeddedEngine

    with no_verdict(), EmbeddedEngine(model, drafter="ngram") as engine:
        return verdict(run(engine, console=console()), as_json)
