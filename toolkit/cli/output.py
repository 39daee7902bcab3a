"""Output: data to stdout, text for people to stderr, prompts and files in.

Knows nothing about: commands, engines.
"""

from __future__ import annotations

import math
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from toolkit.contracts import Json
from toolkit.errors import UsageError
from toolkit.results import json_text

if TYPE_CHECKING:
    from rich.console import Console

MAX_INPUT_BYTES = 16 << 20


def emit(value: Json) -> None:
    """One line of JSON on stdout; infinite numbers, which JSON does not have, become null."""
    click.echo(json_text(_finite(value)))


def _finite(value: Json) -> Json:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def console(*, stderr: bool = True) -> Console:
    """rich on stderr, or stdout; where that is no terminal, wide enough that no table is cut."""
    from rich.console import Console

    found = Console(stderr=stderr)
    return found if found.is_terminal else Console(stderr=stderr, width=160)


def argument_text(argument: str) -> str:
    """The argument itself, the text of FILE for `@FILE`, stdin for `-`; UsageError where that is empty."""
    if argument == "-":
        text = decoded(read_bytes("-"), "stdin")
    elif argument.startswith("@"):
        try:
            text = decoded(read_bytes(argument[1:]), argument)
        except UsageError as error:
            raise UsageError(
                error.message, hint="@FILE reads a file; a prompt that begins with @ goes through stdin: -"
            ) from None
    else:
        text = decoded(argument.encode("utf-8", "surrogateescape"), "the prompt")
    if not text:
        raise UsageError(
            f"the prompt{'' if argument == '' else f' {argument}'} is empty", hint="an unset variable, an empty file?"
        )
    return text


def read_bytes(name: str) -> bytes:
    """A file or pipe of at most 16 MiB, or stdin for `-`; UsageError names what cannot be read, and why."""
    shown = "stdin" if name == "-" else name or "''"
    try:
        if name == "-":
            data = _stdin().read(MAX_INPUT_BYTES + 1)
        else:
            _check_kind(name)
            with Path(name).open("rb") as file:
                data = file.read(MAX_INPUT_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise UsageError(f"{shown} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_INPUT_BYTES:
        raise UsageError(f"{shown} has more than {MAX_INPUT_BYTES} bytes")
    return data


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise UsageError("stdin is closed: - reads it")
    return sys.stdin.buffer


def _check_kind(name: str) -> None:
    if name == "":
        raise UsageError("the file's name is empty")
    mode = Path(name).stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise UsageError(f"{name} is a {'folder' if stat.S_ISDIR(mode) else 'device'}, not a file", hint="- reads stdin")


def decoded(data: bytes, what: str) -> str:
    """UTF-8 text; UsageError names the first byte that is not."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}") from None
