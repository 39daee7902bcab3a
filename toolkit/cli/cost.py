"""Commands bench prefix and bench cost: what a long prompt costs, and what keeping it saves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from toolkit.cli.kinds import TEXT, place
from toolkit.cli.options import engine_options, json_option, opened
from toolkit.cli.output import console
from toolkit.cli.verdict import no_verdict, verdict
from toolkit.engine.engine import is_url
from toolkit.errors import UnsupportedError

if TYPE_CHECKING:
    from toolkit.engine.embedded import EmbeddedEngine


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


@click.command(short_help="A pass against the length before it, its rows, a beam's width; with pictures.")
@click.option("--longest", type=click.IntRange(1), default=4096, show_default=True, help="The longest context, tokens.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Times over all points.")
@click.option("--plots", type=place(files=False), help="Folder for four pictures (SVG).")
@engine_options
@json_option
def cost(longest: int, rounds: int, plots: Path | None, as_json: bool, **options: Any) -> int:
    """Medians with quartiles, the ceiling of the memory's bandwidth beside them; exit code 1 where a row depends on the others."""
    from toolkit.bench.cost import pictures, run

    if is_url(options["engine"]):
        raise UnsupportedError("bench cost times the passes of an engine in this process", hint="leave --engine out")
    with no_verdict(), opened(options) as engine:
        result = run(cast("EmbeddedEngine", engine), longest=longest, rounds=rounds, console=console())
    if plots is not None:
        plots.mkdir(parents=True, exist_ok=True)
        for name, text in pictures(result).items():
            (plots / name).write_text(text, encoding="utf-8")
    return verdict(result, as_json)
