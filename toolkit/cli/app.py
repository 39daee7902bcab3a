"""App: the command group, and how every way of ending becomes an exit code.

In: arguments.   Out: an exit code; errors as a message and a next step on stderr, a traceback only with --debug.
Knows nothing about: what the commands do.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from toolkit.cli import (
    bench,
    bench_jobs,
    calibrate,
    explain,
    gate,
    generate,
    jobs,
    models,
    programs,
    review,
    scale,
    schema,
    serve,
    train,
    validate,
)
from toolkit.errors import ToolkitError, UsageError

INTERRUPTED = 130
READER_GONE = 141
STDERR = 2


class _ReaderGoneError(Exception):
    """stdout was closed at the other end; click would turn that into exit code 1, which is a verdict here."""


class _App(click.Group):
    def invoke(self, context: click.Context) -> Any:
        try:
            result = super().invoke(context)
            sys.stdout.flush()
        except BrokenPipeError:
            raise _ReaderGoneError from None
        return result


@click.group(cls=_App, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="sgl-toolkit", prog_name="toolkit")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def toolkit(context: click.Context, debug: bool) -> None:
    """Structured generation: constrained beam search, validated JSON, an embedded engine."""
    context.ensure_object(dict)["debug"] = debug


for _command in (
    jobs.extract, generate.generate, generate.beam, programs.run, validate.validate, models.model, bench.bench, bench.demo, train.train,
    serve.serve,
    gate.gate, explain.explain, review.review, review.stats, schema.schema, calibrate.calibrate,
):  # fmt: skip
    toolkit.add_command(_command)
explain.explain.add_command(scale.scale)
bench.bench.add_command(bench_jobs.jobs)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command (`argv` None: the process's own arguments) and return its exit code."""
    if sys.stdout is None:
        click.echo("error: stdout is closed: there is nowhere to write a result", err=True)
        return ToolkitError.exit_code
    _occupy_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # absent where a test or a notebook stands in for the stream
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors="backslashreplace")
    flags: dict[str, bool] = {}
    try:
        code = toolkit.main(args=None if argv is None else list(argv), prog_name="toolkit", standalone_mode=False, obj=flags)
        return code if isinstance(code, int) else 0
    except _ReaderGoneError:
        _drop_stdout()
        return READER_GONE
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except ToolkitError as error:
        _explain(error, f"error: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""), flags)
        return error.exit_code
    except MemoryError as error:
        _explain(error, "error: out of memory\nhint: fewer --kv-blocks, a smaller --width or --in-flight", flags)
        return ToolkitError.exit_code
    except OverflowError as error:
        _explain(error, f"error: a number is too large: {error}", flags)
        return UsageError.exit_code
    except OSError as error:
        _explain(error, f"error: {_what_failed(error)}", flags)
        return ToolkitError.exit_code
    except Exception as error:
        _explain(error, f"error: {type(error).__name__}: {error} (unexpected: toolkit --debug shows where)", flags)
        return ToolkitError.exit_code


def _occupy_closed_streams() -> None:
    """Where stdin or stderr is closed, put the null device: the next file opened would get its number, and what is written to it."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        pass
    os.close(handle)


def _drop_stdout() -> None:
    """Let stdout lead nowhere, or the interpreter complains once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _what_failed(error: OSError) -> str:
    """What an OSError was about; one without a file is about the current folder or stdout."""
    why = error.strerror or str(error)
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {why}"
    try:
        Path.cwd()
    except OSError:
        return "the current folder does not exist any more"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF):
        _drop_stdout()
        return f"stdout cannot be written: {why}"
    return why


def _explain(error: Exception, text: str, flags: dict[str, bool]) -> None:
    if flags.get("debug"):
        traceback.print_exception(error)
    click.echo(text, err=True)
