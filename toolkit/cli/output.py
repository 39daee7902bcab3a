"""Output: data to stdout, text for people to stderr, prompts and files in.

Knows nothing about: commands, engines.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.contracts import Json
from toolkit.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

MAX_INPUT_BYTES = 16 << 20


def emit(value: Json) -> None:
    """One line of JSON on stdout; infinite numbers, which JSON does not have, become null."""
    click.echo(json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False))


def _finite(value: Json) -> Json:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def console() -> Console:
    """rich on stderr."""
    from rich.console import Console

    return Console(stderr=True)


def argument_text(argument: str) -> str:
    """The argument itself, the text of FILE for `@FILE`, stdin for `-`."""
    if argument == "-" or argument.startswith("@"):
        return decoded(read_bytes(argument.removeprefix("@")), argument)
    return decoded(argument.encode("utf-8", "surrogateescape"), "the prompt")


def read_bytes(name: str) -> bytes:
    """A file of at most 16 MiB, or stdin for `-`."""
    if name != "-" and not Path(name).is_file():
        raise UsageError(f"{name!r} is not a file")
    if name == "-":
        data = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
    else:
        with Path(name).open("rb") as file:
            data = file.read(MAX_INPUT_BYTES + 1)
    if len(data) > MAX_INPUT_BYTES:
        raise UsageError(f"{'stdin' if name == '-' else name} has more than {MAX_INPUT_BYTES} bytes")
    return data


def decoded(data: bytes, what: str) -> str:
    """UTF-8 text; UsageError names the first byte that is not."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}") from None
