"""Command bench kv: what keys and values of 4 bits save and cost."""

from __future__ import annotations

from pathlib import Path

import click

from toolkit.cli.kinds import TEXT, place
from toolkit.cli.options import json_option
from toolkit.cli.output import console
from toolkit.cli.verdict import no_verdict, verdict


@click.command(short_help="What 4-bit keys and values save and cost, against float32.")
@click.option("--model", default="smollm2", type=TEXT, show_default=True)
@click.option(
    "--text", type=place(exists=True, folders=False),
    help="UTF-8 file to score.  [default: docstrings of the standard library]",
)  # fmt: skip
@json_option
def kv(model: str, text: Path | None, as_json: bool) -> int:
    """Bytes a token, perplexity on text and chat, top-1 agreement, KL; exit code 1 where q4 costs more than 5 % of perplexity."""
    from toolkit.bench.kv import run

    with no_verdict():
        result = run(model, text=text, console=console())
    return verdict(result, as_json)
