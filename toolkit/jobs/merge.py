"""Merge: the values that the pieces of one text gave, to one value, by a declared policy for each field.

    first, last       the first or last piece that has something there (null, "" and [] are nothing while another has something)
    longest           the longest text or list
    vote              what most pieces say; of those the surest, of those the first
    max_confidence    the piece that was surest of it (least sure token of what is below it counts for objects and lists)
    min, max          the least or greatest number
    union, concat     lists: all items in order, equal ones once (union) or as often as they come (concat)

Where no policy is declared, objects are merged field by field, lists by union, everything else by max_confidence.
In: values with the confidences of their leaves, in the order of the pieces.   Out: the value, and for every leaf the piece and the place
in its value that it comes from.
Knows nothing about: texts, schemas. The merged value is the validator's to judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from toolkit.contracts import Json
from toolkit.errors import InputError
from toolkit.jobs.pointer import leaves, lookup
from toolkit.schema import escape_pointer, value_key

Policy = Literal["first", "last", "longest", "vote", "max_confidence", "min", "max", "union", "concat"]
NOTHING: tuple[Json, ...] = (None, "", [])


@dataclass(frozen=True, slots=True)
class Piece:
    """What one piece says: its number, its value, how sure it was of each leaf."""

    number: int
    value: Json
    confidence: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a leaf of the merged value comes from."""

    piece: int
    pointer: str


@dataclass(slots=True)
class Merged:
    """The value, and the origin of each of its leaves by pointer."""

    value: Json
    origins: dict[str, Origin] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Candidate:
    piece: Piece
    pointer: str
    value: Json

    @property
    def sure(self) -> float:
        return min((self.piece.confidence.get(place, 0.0) for place, _ in leaves(self.value, self.pointer)), default=1.0)

    def below(self, key: str | int, value: Json) -> _Candidate:
        return _Candidate(self.piece, f"{self.pointer}/{escape_pointer(str(key))}", value)


def merge(pieces: Sequence[Piece], policies: Mapping[str, Policy]) -> Merged:
    """InputError where a declared policy cannot be followed, such as min of texts."""
    merged = Merged(None)
    merged.value = _merge("", [_Candidate(piece, "", piece.value) for piece in pieces], policies, merged.origins)
    return merged


def _merge(place: str, found: Sequence[_Candidate], policies: Mapping[str, Policy], origins: dict[str, Origin]) -> Json:
    found = [each for each in found if each.value not in NOTHING] or found[:1]
    declared = lookup(policies, place)
    exact = declared is not None and declared[0] != "*"
    if not exact and all(isinstance(each.value, dict) for each in found):
        return _fields(place, found, policies, origins)
    lists = all(isinstance(each.value, list) for each in found)
    policy: Policy = declared[1] if declared is not None else "union" if lists else "max_confidence"
    if policy in ("union", "concat"):
        if lists:
            return _items(place, found, origins, once=policy == "union")
        if exact:
            raise InputError(f"merge policy {policy} at {place or 'the root'}: a piece has no list there")
        policy = "max_confidence"
    taken = _CHOICES[policy](found, place)
    _note(place, taken, origins)
    return taken.value


def _fields(place: str, found: Sequence[_Candidate], policies: Mapping[str, Policy], origins: dict[str, Origin]) -> Json:
    names = dict.fromkeys(name for each in found for name in each.value)
    return {
        name: _merge(
            f"{place}/{escape_pointer(name)}",
            [each.below(name, each.value[name]) for each in found if name in each.value],
            policies, origins,
        )
        for name in names
    }  # fmt: skip


def _items(place: str, found: Sequence[_Candidate], origins: dict[str, Origin], *, once: bool) -> list[Json]:
    made: list[Json] = []
    seen: set[object] = set()
    for each in found:
        for index, item in enumerate(each.value):
            key = value_key(item)
            if not (once and key in seen):
                seen.add(key)
                _note(f"{place}/{len(made)}", each.below(index, item), origins)
                made.append(item)
    return made


def _note(place: str, taken: _Candidate, origins: dict[str, Origin]) -> None:
    for pointer, _ in leaves(taken.value, ""):
        origins[place + pointer] = Origin(taken.piece.number, taken.pointer + pointer)


def _longest(found: Sequence[_Candidate], place: str) -> _Candidate:
    return max(found, key=lambda each: len(each.value) if isinstance(each.value, str | list | dict) else len(str(each.value)))


def _vote(found: Sequence[_Candidate], place: str) -> _Candidate:
    votes = Counter(value_key(each.value) for each in found)
    return max(found, key=lambda each: (votes[value_key(each.value)], each.sure))


def _number(pick: Callable[..., _Candidate], name: str) -> Callable[[Sequence[_Candidate], str], _Candidate]:
    def choose(found: Sequence[_Candidate], place: str) -> _Candidate:
        wrong = [each for each in found if isinstance(each.value, bool) or not isinstance(each.value, int | float)]
        if wrong:
            raise InputError(
                f"merge policy {name} at {place or 'the root'}: a piece has {wrong[0].value!r:.40} there, no number"
            )
        return pick(found, key=lambda each: each.value)

    return choose


_CHOICES: Mapping[str, Callable[[Sequence[_Candidate], str], _Candidate]] = {
    "first": lambda found, place: found[0],
    "last": lambda found, place: found[-1],
    "longest": _longest,
    "vote": _vote,
    "max_confidence": lambda found, place: max(found, key=lambda each: each.sure),
    "min": _number(min, "min"),
    "max": _number(max, "max"),
}
