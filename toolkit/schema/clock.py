"""Clock: JSON Schema work that ends.

In: seconds; a validator class of `jsonschema`.   Out: OutOfTime when they are spent; a class whose every keyword looks at the clock.
Knows nothing about: which keywords there are.
Time is the CPU time of the thread, and what is charged to it: a busy machine changes no verdict.
Invariants: inside `deadline(seconds)` no more keywords start once the time is over, also not in subschemas that name a dialect
of their own; a deadline inside another never ends later than that one.
Why: references and anyOf make validation exponential in a small schema, and a meta-schema is slow on a large one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from toolkit.contracts import Json

Keyword = Callable[[Any, Any, Json, Any], Any]  # (validator, keyword's value, instance, schema) -> errors or None


class OutOfTime(Exception):  # noqa: N818 - a signal, caught by whoever set the clock
    """The work took longer than it may."""


_DEADLINE: ContextVar[float] = ContextVar("deadline", default=math.inf)


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Give everything done inside `seconds`, or what is left of an outer deadline, then OutOfTime."""
    token = _DEADLINE.set(min(_DEADLINE.get(), time.thread_time() + seconds))
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def seconds_left() -> float:
    """Seconds to the deadline, infinite where there is none. Raises OutOfTime where none are left."""
    left = _DEADLINE.get() - time.thread_time()
    if left <= 0:
        raise OutOfTime
    return left


def charge(seconds: float) -> None:
    """Take seconds that another process spent for this thread off the current deadline."""
    _DEADLINE.set(_DEADLINE.get() - seconds)


def clocked(validator: Any, overrides: Mapping[str, Keyword]) -> Any:
    """The validator class with `overrides` for the keywords it has, and all of them looking at the clock."""
    import attrs
    from jsonschema import validators

    extend: Any = validators.extend
    fields = [(each.alias, each.name) for each in attrs.fields(validator) if each.init]
    classes: dict[Any, Any] = {}  # the library's class of a dialect -> the same on the clock

    def on_the_clock(plain: Any) -> Any:
        if plain not in classes:
            known = {name: overrides.get(name, keyword) for name, keyword in plain.VALIDATORS.items()}
            classes[plain] = extend(plain, {name: _looking(keyword) for name, keyword in known.items()})
            classes[plain].evolve = evolve
        return classes[plain]

    def evolve(self: Any, **changes: Any) -> Any:
        """As the library's own, which forgets clock and overrides wherever a subschema holds `$schema`."""
        plain: Any = validators.validator_for(changes.get("schema", self.schema), default=None)  # type: ignore[arg-type]
        kept = {alias: getattr(self, name) for alias, name in fields}
        return (type(self) if plain is None else on_the_clock(plain))(**kept | changes)

    return on_the_clock(validator)


def _looking(keyword: Keyword) -> Keyword:
    def look_then_run(validator: Any, value: Any, instance: Json, schema: Any) -> Any:
        seconds_left()
        return keyword(validator, value, instance, schema)

    return look_then_run
