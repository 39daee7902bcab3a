"""Commands bench prefix and bench cost: what a long prompt costs, and what keeping it saves."""

from __future__ import annotations

import click

from toolkit.cli.kinds import TEXT
from toolkit.cli.options import json_option
from toolkit.cli.output import console
from toolkit.cli.verdict import no_verdict, verdict


@click.command(short_help="A long prompt answered with and without a folder of kept keys and values.")
@click.option("--model", default="smollm2", type=TEXT, show_default=True)
@click.option("--tokens", type=click.IntRange(32), default=2000, show_default=True, help="Of the prompt.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Processes an arm.")
@json_option
def prefix(model: str, tokens: int, rounds: int, as_json: bool) -> int:
    """Whole processes of `toolkit generate`, in turns: no --prefix-cache, a new folder, that folder again; exit code 1 where texts differ."""
    from toolkit.bench.prefix import run

    with no_verdict():
        result = run(model=model, tokens=tokens, rounds=rounds, console=console())
    return verdict(result, as_json)
