"""BFCL judge: the arguments of an answer against the accepted ones.

In: accepted calls (argument -> list of accepted values) and a parsed answer.   Out: counts of right, wrong and missed arguments.
Knows nothing about: where records come from.
Rule: every argument must be among its accepted values (strings lower-cased and stripped), none may be invented, and only
arguments whose accepted values contain "" may be missing. Accepted objects hold lists of accepted values themselves.
Departure from Python's ==: true is not 1, and a number is never equal to its text.
"""

from __future__ import annotations

from toolkit.bench.task import Counts
from toolkit.contracts import Json


def judge(gold: list[dict[str, list[Json]]], value: Json) -> Counts:
    """Arguments of `value` against the accepted ones; of several accepted calls the one that fits best counts."""
    given = value if isinstance(value, dict) else {}
    return min((_compare(accepted, given) for accepted in gold), key=lambda c: (c.wrong + c.missed, -c.right))


def _compare(accepted: dict[str, list[Json]], given: dict[str, Json]) -> Counts:
    right = sum(name in accepted and _among(accepted[name], value) for name, value in given.items())
    missed = sum(not (_among(values, given[name]) if name in given else "" in values) for name, values in accepted.items())
    return Counts(right, len(given) - right, missed)


def _among(values: list[Json], given: Json) -> bool:
    return any(_same(value, given) for value in values)


def _same(accepted: Json, given: Json) -> bool:
    if isinstance(accepted, str) and isinstance(given, str):
        return accepted.strip().lower() == given.strip().lower()
    if isinstance(accepted, bool) or isinstance(given, bool):
        return accepted is given
    if isinstance(accepted, list) and isinstance(given, list):
        return len(accepted) == len(given) and all(_same(a, g) for a, g in zip(accepted, given, strict=True))
    if isinstance(accepted, dict) and isinstance(given, dict):
        return all(isinstance(values, list) for values in accepted.values()) and _compare(accepted, given).exact
    return bool(type(accepted) is type(given) or _both_numbers(accepted, given)) and bool(accepted == given)


def _both_numbers(a: Json, b: Json) -> bool:
    return isinstance(a, int | float) and isinstance(b, int | float)
