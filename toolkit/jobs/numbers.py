"""Numbers: where a number stands in a text, in whatever way of writing.

In: a text, numbers.   Out: the characters [start, end) that can be read as the number.
Knows nothing about: units, words for numbers, dates.
Invariants: a number is found as a whole, never inside a longer one; 1,234.5 and 1.234,5 and 1 234,5 and 1'234.5 are all read, and a
text that can be read in two ways (1,234) stands for both. A negative number needs its sign; a minus in front of another may be a dash.
At most MOST numbers of a text are looked at.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

MOST = 100_000
_DIGITS = 60  # longest way of writing that is read
_NUMBER = re.compile(
    r"(?<![\w.,])(?:[-+−]\s?)?(?:\d{1,3}(?:[.,'’\u00a0\u202f ]\d{3})+(?!\d)|\d+|(?=[.,]\d))(?:[.,]\d+)?(?![.,]?\d)"
)
_WRITTEN = tuple(
    (re.compile(rf"(?:\d+|\d{{1,3}}(?:{group}\d{{3}})+)?(?:{point}\d+)?"), group[-1], point[-1])
    for group, point in ((",", r"\."), (r"\.", ","))
)
_SPACES = re.compile(r"['’\u00a0\u202f ]")


class Numbers:
    """The numbers of one text, read once."""

    def __init__(self, text: str) -> None:
        self._places: dict[Decimal, tuple[int, int]] = {}
        for count, match in enumerate(_NUMBER.finditer(text)):
            if count == MOST:
                break
            self._take(match.group(), match.start())
            if " " in match.group():  # two numbers beside each other, perhaps
                for part in re.finditer(r"[^ ]+", match.group()):
                    self._take(part.group(), match.start() + part.start())

    def _take(self, written: str, start: int) -> None:
        bare = written.lstrip("-+− \u00a0")
        for value in _readings(bare):
            self._places.setdefault(value, (start + len(written) - len(bare), start + len(written)))
            if written[0] in "-−":
                self._places.setdefault(-value, (start, start + len(written)))

    def find(self, value: float | int) -> tuple[int, int] | None:
        """Where the first way of writing `value` stands."""
        try:
            return self._places.get(Decimal(repr(value)).normalize())
        except InvalidOperation:
            return None


def _readings(written: str) -> set[Decimal]:
    """Every way to read one number without its sign: either of comma and point may be the decimal one."""
    if len(written) > _DIGITS:
        return set()
    plain = _SPACES.sub("", written)
    return {
        Decimal(plain.replace(group, "").replace(point, ".")).normalize()
        for form, group, point in _WRITTEN
        if form.fullmatch(plain) and plain
    }
