"""Kinds: what an option's text must be, beyond what click checks.

In: the text of an argument.   Out: the text or path, or click's usage error with the option's name.
Knows nothing about: what the options are for.
Invariants: an empty text, which an unset shell variable leaves behind, is never taken for an option that was left out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

MOST_IN_FLIGHT = 256
_EMPTY = "it is empty (an unset variable?): give one, or leave the option out"


class _Text(click.types.StringParamType):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail(_EMPTY, param, ctx)
        if isinstance(value, str) and os.fsencode(value).decode("utf-8", "replace") != value:
            self.fail("it is not UTF-8", param, ctx)
        return value


class _Place(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail(_EMPTY, param, ctx)
        return super().convert(value, param, ctx)


class InFlight(_Text):
    """A number of records, or auto."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """An integer from 1 to 256, or the word."""
        text = super().convert(value, param, ctx)
        if text == "auto":
            return text
        if not (text.isdecimal() and 1 <= int(text) <= MOST_IN_FLIGHT):
            self.fail(f"{text!r} is neither an integer from 1 to {MOST_IN_FLIGHT} nor auto", param, ctx)
        return int(text)


TEXT = _Text()


def place(*, exists: bool = False, folders: bool = True, files: bool = True) -> click.Path:
    """A path; `exists` refuses one where nothing is, `folders` False and `files` False refuse those."""
    return _Place(exists=exists, dir_okay=folders, file_okay=files, path_type=Path)
