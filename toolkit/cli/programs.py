"""Command run: a SGLang program of programs/, on an engine of this toolkit."""

from __future__ import annotations

from typing import Any

import click

from toolkit.cli.options import engine_options, opened
from toolkit.cli.output import emit


@click.command(short_help="A program of programs/.", context_settings={"ignore_unknown_options": True})
@engine_options
@click.argument("program")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(program: str, args: tuple[str, ...], **options: Any) -> None:
    """Run PROGRAM (a path, or a name of programs/) with ARGS; its result goes to stdout as one line of JSON."""
    from toolkit.lang.program import run_program

    with opened(options) as engine:
        emit(run_program(program, args, engine=engine))
