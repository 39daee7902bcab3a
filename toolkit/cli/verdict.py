"""Verdict: what a measurement's result becomes - JSON on stdout where asked for, and an exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from toolkit.cli.output import emit
from toolkit.contracts import Json
from toolkit.errors import InputError, UsageError

HOLD = "HOLD"


@contextmanager
def no_verdict() -> Iterator[None]:
    """Data or a model that cannot be read was named by an option: exit code 2, not the 1 of a verdict."""
    try:
        yield
    except InputError as error:
        raise UsageError(error.message, hint=error.hint) from error


def verdict(result: dict[str, Json], as_json: bool) -> int:
    """1 where speed was withheld, else 0."""
    if as_json:
        emit(result)
    return int(result["verdict"] == HOLD)
