"""Clock: JSON Schema validation that ends.

In: a validator class of `jsonschema`.   Out: one whose every keyword looks at the clock first.
Knows nothing about: which keywords there are.
Time is the CPU time of the thread: a busy machine changes no verdict.
Invariants: inside `deadline(seconds)` no more keywords start once the time is over: OutOfTime instead.
Why: references and anyOf make validation exponential in a small schema, and a meta-schema is slow on a large one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jsonschema

from toolkit.contracts import Json

Keyword = Callable[[Any, Any, Json, Any], Any]  # (validator, keyword's value, instance, schema) -> errors or None


class OutOfTime(Exception):  # noqa: N818 - a signal, caught by whoever set the clock
    """The check took longer than it may."""


_DEADLINE: ContextVar[float] = ContextVar("deadline")


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Give everything checked inside `seconds`, then OutOfTime."""
    token = _DEADLINE.set(time.thread_time() + seconds)
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def seconds_left() -> float:
    """Seconds to the deadline. Raises OutOfTime where there are none."""
    left = _DEADLINE.get() - time.thread_time()
    if left <= 0:
        raise OutOfTime
    return left


def clocked(validator: Any, overrides: Mapping[str, Keyword]) -> Any:
    """The validator class with `overrides` for the keywords it has, and all of them looking at the clock."""
    extend: Any = jsonschema.validators.extend
    known = {name: overrides.get(name, keyword) for name, keyword in validator.VALIDATORS.items()}
    return extend(validator, {name: _looking(keyword) for name, keyword in known.items()})


def _looking(keyword: Keyword) -> Keyword:
    def look_then_run(validator: Any, value: Any, instance: Json, schema: Any) -> Any:
        seconds_left()
        return keyword(validator, value, instance, schema)

    return look_then_run
