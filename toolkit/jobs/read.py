"""Input: the records of a file, a folder, stdin or a Python object, one at a time.

In: a place or an object, and a JobSpec.   Out: Record or BadRecord, in input order, numbered from 0 without gaps.
Knows nothing about: schemas, prompts, engines, output.
Invariants: reading twice gives the same records (but for a stream, which is read once); a bad place costs that place only and is
reported by file and line number; ids are unique (a second record with the same id is a BadRecord). Constant memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toolkit.errors import InputError, UsageError
from toolkit.jobs.seen import Seen
from toolkit.jobs.sources import Origin, origin_of
from toolkit.jobs.spec import JobSpec
from toolkit.jobs.units import MAX_RAW_CHARS as MAX_RAW_CHARS
from toolkit.jobs.units import Row, Unit

MAX_ID_CHARS = 500


@dataclass(frozen=True, slots=True)
class Record:
    """One document: its place in the input, its id, where it stands (file:line), its text, all its fields, about its bytes."""

    index: int
    id: str
    where: str
    text: str
    row: Row
    size: int = 0


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A place in the input that is no record: why, and the raw text there (shortened)."""

    index: int
    id: str
    where: str
    reason: str
    raw: str
    size: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """An input. `open_source` makes one. `origin.repeatable` says whether it can be read more than once."""

    origin: Origin
    spec: JobSpec

    def digest(self) -> str | None:
        """sha256 of the contents, None of a stream."""
        return self.origin.digest()

    def count(self) -> int | None:
        """How many records (bad ones too) iteration will give, None of a stream. UsageError where it is damaged further on."""
        try:
            return self.origin.count()
        except InputError as error:
            raise UsageError(error.message, hint=error.hint) from None

    def __iter__(self) -> Iterator[Record | BadRecord]:
        with Seen() as seen:
            for index, unit in enumerate(self._units()):
                try:
                    yield _record(index, unit, self.spec, seen)
                except InputError as error:
                    yield BadRecord(index, unit.name, unit.where, str(error), unit.raw, unit.size)

    def _units(self) -> Iterator[Unit]:
        """UsageError where the input is damaged further on than anyone has looked: no record is at fault."""
        try:
            yield from self.origin.units()
        except InputError as error:
            raise UsageError(error.message, hint=error.hint) from None


def open_source(place: object, spec: JobSpec) -> Source:
    """The records of a path, of stdin (`-`) or of a Python object.

    UsageError where it does not exist or cannot be read, has another ending or no such column, or is empty.
    """
    return Source(origin_of(place, spec), spec)


def _record(index: int, unit: Unit, spec: JobSpec, seen: Seen) -> Record | BadRecord:
    row = unit.parse()
    record_id = _id_of(row, unit, spec.id_field)
    before = seen.before(record_id, unit.where)
    if before is not None:
        raise InputError(f"id {record_id!r} was already used at {before}")
    text = row.get(spec.text_field)
    if not isinstance(text, str) or not text.strip():  # a dead letter keeps the record's own id
        return BadRecord(index, record_id, unit.where, _text_fault(row, spec.text_field), unit.raw, unit.size)
    return Record(index, record_id, unit.where, text, row, max(unit.size, len(text)))


def _text_fault(row: Row, field: str) -> str:
    if field not in row:
        return f"text field {field!r} is missing: the record has {_names(row)}"
    return f"text field {field!r} is {'empty' if isinstance(row[field], str) else type(row[field]).__name__}, not text"


def _id_of(row: Row, unit: Unit, field: str | None) -> str:
    if field is None and "id" not in row:
        return unit.name
    if (name := field or "id") not in row:
        raise InputError(f"id field {name!r} is missing: the record has {_names(row)}")
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, str | int) or not 0 < len(str(value)) <= MAX_ID_CHARS:
        raise InputError(
            f"id field {name!r} is {str(value)[:40]!r}: it must be a string of 1 to {MAX_ID_CHARS} characters or an integer"
        )
    return str(value)


def _names(row: Row) -> str:
    names: Sequence[str] = sorted(row)
    return ", ".join(names) or "no fields"
