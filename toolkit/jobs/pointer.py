"""Pointer: places in a JSON value, and patterns that mean many of them.

A pattern is a JSON pointer in which `*` stands for any one name or index; the pattern `*` alone stands for every place.
In: values, pointers, patterns.   Out: leaves with their pointers; the entry of a table that fits best.
Knows nothing about: what the tables say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from toolkit.contracts import Json
from toolkit.errors import UsageError
from toolkit.schema import escape_pointer

EVERYWHERE = "*"

T = TypeVar("T")


def leaves(value: Json, pointer: str = "") -> Iterator[tuple[str, Json]]:
    """(pointer, scalar) of every scalar in a value, in its order."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, f"{pointer}/{escape_pointer(name)}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, f"{pointer}/{index}")
    else:
        yield pointer, value


def parts(pointer: str) -> list[str]:
    """Names and indices that a JSON pointer goes through (RFC 6901)."""
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def general(pointer: str) -> str:
    """The pointer with every index as `*`: what the places of one field in many values have in common."""
    return "/".join(EVERYWHERE if part.isdecimal() else part for part in pointer.split("/"))


def fits(pattern: str, pointer: str) -> bool:
    """Does the pattern mean this place?"""
    if pattern in (EVERYWHERE, pointer):
        return True
    wanted, there = pattern.split("/"), pointer.split("/")
    return len(wanted) == len(there) and all(each in (EVERYWHERE, part) for each, part in zip(wanted, there, strict=True))


def lookup(table: Mapping[str, T], pointer: str) -> tuple[str, T] | None:
    """The entry that fits a place, the most exact first (fewest stars), `*` alone last."""
    if not table:
        return None
    found = [pattern for pattern in table if fits(pattern, pointer)]
    best = min(found, key=lambda each: (each == EVERYWHERE, each.count(EVERYWHERE)), default=None)
    return None if best is None else (best, table[best])


def check_patterns(patterns: Iterable[str], what: str) -> None:
    """UsageError for a text that is no pattern."""
    for pattern in patterns:
        if pattern not in (EVERYWHERE, "") and not pattern.startswith("/"):
            raise UsageError(
                f"{what} names the place {pattern!r}: it must be a JSON pointer such as /items/*/price, or * for every place",
                hint=f"/{pattern}",
            )
