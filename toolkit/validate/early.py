"""Early: what a schema forbids while a value is still being read.

In: the notes of a machine.   Out: where and why the text cannot lead to a valid value, or nothing.
Knows nothing about: bytes, events.
Invariants: sound - what is refused here the judge would refuse in the end; the place is the same for every cut of the text; a text
has EARLY_SECONDS of judging on its way, and what cannot be decided in them is left to the judge at its end.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right

from toolkit.validate.json_machine import Note
from toolkit.validate.judge import UNDECIDED, SchemaJudge
from toolkit.validate.outline import Outline, in_words, type_of

EARLY_SECONDS = 1.0  # of CPU time, all scalars of a text together
_FIRST = {"{": {"object"}, "[": {"array"}, '"': {"string"}, "t": {"boolean"}, "f": {"boolean"}, "n": {"null"}}

# Keywords that say nothing more of a scalar once it has one of its types and was not found too long on the way.
_SEEN = frozenset(("type", "maxLength", "title", "description", "default", "examples", "$comment"))


class EarlyJudge:
    """Follows one value of a schema. `violation` is asked about every note, in order."""

    def __init__(self, outline: Outline, judge: SchemaJudge) -> None:
        """Both of one schema; they are not changed and may be shared."""
        self.outline = outline
        self._judge = judge
        self._places = [self.outline]  # of the value that is being read and of everything it is in
        self._range = (0, 0)  # where those stand in the place's `sorted_texts` that the string being read can still become
        self._chars = 0
        self._seconds = EARLY_SECONDS  # left

    def violation(self, note: Note, text: str) -> tuple[int, str] | None:
        """(index into `text`, why), None where nothing is wrong yet."""
        if note.kind == "key":
            name, place = str(note.path[-1]), self._places[len(note.path) - 1]
            return None if place.allows_name(name) else (note.at, f"property {name[:40]!r} is not allowed here")
        if note.kind == "begin":
            return self._begin(note, text[note.at])
        if note.kind == "text":
            return self._grow(note)
        return self._end(note)

    def _begin(self, note: Note, first: str) -> tuple[int, str] | None:
        depth = len(note.path)
        if depth:
            self._places[depth:] = [self._places[depth - 1].child(note.path[-1])]
            most = self._places[depth - 1].most_items
            if isinstance(note.path[-1], int) and most is not None and note.path[-1] >= most:
                return note.at, f"more than {most} items"
        place = self._places[depth]
        if not _FIRST.get(first, {"integer", "fraction"}) & place.types:
            return note.at, f"expected {in_words(place.types)}, found what begins with {first!r}"
        self._range, self._chars = (0, len(place.sorted_texts)), 0
        return None

    def _grow(self, note: Note) -> tuple[int, str] | None:
        place = self._places[len(note.path)]
        if place.most_chars is None and place.texts is None:
            return None
        for index, char in enumerate(note.value):
            if place.most_chars is not None and self._chars >= place.most_chars:
                return note.at + index, f"a string longer than {place.most_chars} characters"
            if place.texts is not None:
                start = bisect_left(place.sorted_texts, char, *self._range, key=self._next)
                end = bisect_right(place.sorted_texts, char, start, self._range[1], key=self._next)
                self._range = (start, end)
                if start == end:
                    return note.at + index, "a string that is none of those that are listed"
            self._chars += 1
        return None

    def _next(self, listed: str) -> str:
        """The character of a listed text that would come next; those in the range begin alike, so it orders them."""
        return listed[self._chars : self._chars + 1]

    def _end(self, note: Note) -> tuple[int, str] | None:
        place, value = self._places[len(note.path)], note.value
        at = (
            note.at if type_of(value) in ("integer", "fraction") else note.at - 1
        )  # a number is over with the character after it
        if isinstance(value, dict):
            absent = next((name for name in place.required if name not in value), None)
            return None if absent is None else (at, f"property {absent[:40]!r} is required")
        if isinstance(value, list):
            return None
        for part in place.parts:
            if (part.keys() <= _SEEN and type_of(value) in place.types) or self._seconds <= 0:
                continue
            began = time.thread_time()
            found = self._judge.violations(value, 1, part)
            self._seconds -= time.thread_time() - began
            if found and found[0].keyword != UNDECIDED:
                return at, found[0].message
        return None
