"""Command bench equality: greedy speculation against plain decoding, token for token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from toolkit.cli.kinds import TEXT, place
from toolkit.cli.options import engine_options, json_option, opened
from toolkit.cli.output import console
from toolkit.cli.verdict import no_verdict, verdict
from toolkit.contracts import Engine
from toolkit.errors import ToolkitError, UsageError

ARMS = (
    "ngram:tokens=6,width=1",
    "ngram:nodes=12",
    "model:tokens=4,width=1",
    "model:nodes=12",
    "medusa:tokens=3,width=1",
    "medusa:nodes=12",
    "mtp:tokens=4,width=1",
    "mtp:nodes=12",
    "ngram+mtp:tokens=4,ngram.width=1,mtp.width=1",
    "ngram+mtp:nodes=12,fill=true",
)


@click.command(short_help="Greedy speculation against plain decoding, token for token.")
@click.option(
    "--arm",
    "names",
    type=TEXT,
    multiple=True,
    metavar="DRAFTER[:NAME=VALUE,...]",
    help="A drafter with its options; repeatable.  [default: every drafter as chain and as tree]",
)
@click.option("--prompts", type=click.IntRange(1), default=200, show_default=True, help="Prompts.")
@click.option("--tokens", type=click.IntRange(2), default=256, show_default=True, help="At most so many a text.")
@click.option(
    "--grammar",
    "grammars",
    type=click.Choice(["free", "schema", "regex"]),
    multiple=True,
    help="Repeatable.  [default: free, schema]",
)
@click.option("--batch", "batches", type=click.IntRange(1), multiple=True, help="Texts together; repeatable.  [default: 1, 4]")
@click.option(
    "--keep",
    type=place(folders=False),
    help="A file that settings are kept in as they end; a later run of the same code and options goes on from there.",
)
@engine_options
@json_option
def equality(
    as_json: bool, keep: Path | None, names: tuple[str, ...], prompts: int, tokens: int, grammars: tuple[str, ...], batches: tuple[int, ...], **options: Any
) -> int:  # fmt: skip
    """All settings over the same prompts; exit code 1 where a text differs. With all defaults this takes hours: divide it by --arm."""
    from toolkit.bench.equality import BATCHES, run
    from toolkit.bench.equality_kept import Kept
    from toolkit.gate.identity import identity as of
    from toolkit.gate.identity import key

    @contextmanager
    def engine_of(name: str) -> Iterator[Engine]:
        drafter, _, more = name.partition(":")
        own = {"drafter": drafter, "draft_more": tuple(filter(None, more.split(",")))}
        with opened({**options, **own}) as engine:
            yield engine

    arms = tuple(dict.fromkeys(names)) or tuple(name for name in ARMS if _is_there(engine_of, name))
    if not arms:
        raise UsageError("no drafter could be opened for this model", hint="name one with --arm to see why")
    with no_verdict():
        result = run(
            arms, engine_of, prompts=prompts, tokens=tokens, grammars=grammars or ("free", "schema"), batches=batches or BATCHES,
            console=console(), kept=None if keep is None else Kept(keep), mark=lambda engine: key({}, of(engine)),
        )  # fmt: skip
    return verdict(result, as_json)


def _is_there(engine_of: Any, name: str) -> bool:
    """Whether the model has this drafter; said where it has not."""
    try:
        with engine_of(name):
            return True
    except ToolkitError as error:
        console().print(f"{name} is not compared: {error}", markup=False)
        return False
