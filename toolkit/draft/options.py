"""Options: the options of one drafter, taken out one by one; a wrong value or one that nobody took is refused by name.

In: a mapping from a caller or a command line.   Out: checked values.
Knows nothing about: which drafter it is, but for its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.contracts import require
from toolkit.errors import UsageError


class Options:
    """`count`, `share`, `flag` and `text` take an option or its default; `end` refuses what is left."""

    def __init__(self, drafter: str, given: Mapping[str, Any]) -> None:
        self.drafter = drafter
        self._left = dict(given)
        self._known: list[str] = []

    def count(self, name: str, default: int, least: int, most: int) -> int:
        """An integer from `least` to `most`."""
        value = self._take(name, default)
        ok = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        require(ok, self._called(name), value, f"an integer from {least} to {most}")
        return int(value)

    def share(self, name: str, default: float) -> float:
        """A number from 0 to 1."""
        value = self._take(name, default)
        ok = isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value <= 1.0
        require(ok, self._called(name), value, "a number from 0 to 1")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._take(name, default)
        require(isinstance(value, bool), self._called(name), value, "True or False")
        return bool(value)

    def text(self, name: str) -> str:
        """A string, "" where it is not given."""
        value = self._take(name, "")
        require(isinstance(value, str), self._called(name), value, "a string")
        return str(value)

    def group(self, name: str) -> Mapping[str, Any]:
        """Options of a part, {} where they are not given."""
        value = self._take(name, {})
        require(isinstance(value, Mapping), self._called(name), value, "a mapping of options")
        return dict(value)

    def end(self) -> None:
        """UsageError for an option that the drafter does not have."""
        if self._left:
            known = ", ".join((*self._known, "tokens", "nodes"))  # the last two bound every drafter's draft (engine/plan.py)
            raise UsageError(f"drafter {self.drafter!r} has no option {', '.join(map(repr, self._left))}: it has {known}")

    def _take(self, name: str, default: Any) -> Any:
        self._known.append(name)
        return self._left.pop(name, default)

    def _called(self, name: str) -> str:
        return f"option {name!r} of drafter {self.drafter!r}"
