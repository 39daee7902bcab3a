"""Command run: a SGLang program of programs/, on an engine of this toolkit.

Invariants: stdout is the program's result and nothing else; whatever the program raises, the message says where in its file.
"""

from __future__ import annotations

import sys
import traceback
from contextlib import redirect_stdout
from typing import Any

import click

from toolkit.cli.options import engine_options, opened
from toolkit.cli.output import emit
from toolkit.contracts import Engine, Json
from toolkit.errors import EngineError, ToolkitError


@click.command(short_help="A program of programs/.", context_settings={"ignore_unknown_options": True})
@engine_options
@click.argument("program")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(program: str, args: tuple[str, ...], **options: Any) -> None:
    """Run PROGRAM (a path, or a name of programs/) with ARGS; its result goes to stdout as one line of JSON.

    What the program prints goes to stderr.
    """
    with opened(options) as engine, redirect_stdout(sys.stderr):
        returned = _returned(program, args, engine)
    emit(returned)


def _returned(program: str, args: tuple[str, ...], engine: Engine) -> Json:
    from toolkit.lang.program import run_program

    try:
        return run_program(program, args, engine=engine)
    except ToolkitError as error:
        where = _place(error)
        error.message += f" ({where})" if where else ""
        raise
    except SystemExit as error:
        raise EngineError(
            f"program {program} called sys.exit({error.code!r}) ({_place(error)})", hint="main() returns its result"
        ) from error
    except Exception as error:
        raise EngineError(f"program {program} failed: {type(error).__name__}: {error} ({_place(error)})") from error


def _place(error: BaseException) -> str:
    """File and line of the program where `error` came from; empty where the program had no part in it."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if _is_program(frame.f_globals)]
    return f"{frames[-1][0].f_code.co_filename}:{frames[-1][1]}" if frames else ""


def _is_program(names: dict[str, Any]) -> bool:
    return str(names.get("__name__")).startswith("toolkit_program_")
