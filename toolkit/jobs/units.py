"""Units: the places of an input where a record should be, before they are read as one.

In: bytes of a file.   Out: Unit (where it stands, its raw text, how to make a row of it).
Knows nothing about: which fields a record needs.
Invariants: no line, cell or file above its size limit is held in memory; a bad place costs that place only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import IO

from toolkit.contracts import Json
from toolkit.errors import InputError
from toolkit.schema import parse_json

MAX_RECORD_BYTES = 8 << 20
MAX_RAW_CHARS = 2000
BOM = b"\xef\xbb\xbf"
UTF16 = (b"\xff\xfe", b"\xfe\xff")

Row = Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Unit:
    """`name` is the id where the record brings none, `size` about the bytes that it holds, `parse` raises InputError."""

    where: str
    name: str
    raw: str
    size: int
    parse: Callable[[], Row]


def failed(message: str) -> Row:
    """For a place that was found to be none while it was cut out."""
    raise InputError(message)


def lines(file: IO[bytes]) -> Iterator[bytes]:
    """Lines without their end; one above the limit is cut to just above it and its rest skipped."""
    while line := file.readline(MAX_RECORD_BYTES + 1):
        tail = line
        while not tail.endswith(b"\n") and len(tail) > MAX_RECORD_BYTES:
            tail = file.readline(MAX_RECORD_BYTES + 1)
        yield line.rstrip(b"\r\n")


def decoded(raw: bytes, encoding: str) -> str:
    """Text of at most MAX_RECORD_BYTES; InputError where it is longer or not of the encoding."""
    if len(raw) > MAX_RECORD_BYTES:
        raise InputError(f"the record has more than {MAX_RECORD_BYTES} bytes")
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(f"byte {error.start} is not {encoding}: {error.reason}", hint="name another --encoding") from None


def check_utf16(start: bytes, encoding: str) -> None:
    """InputError for the first bytes of UTF-16 (or UTF-32) text, as some editors and Excel save it: no line of it could be read."""
    if encoding == "utf-8" and start.startswith(UTF16):
        raise InputError("it begins with the byte order mark of UTF-16", hint="save it as UTF-8")


def jsonl_units(name: str, file: IO[bytes], encoding: str) -> Iterator[Unit]:
    """One unit a line that is not blank."""
    for number, line in enumerate(lines(file), start=1):
        if number == 1:
            check_utf16(line, encoding)
        line = line.removeprefix(BOM) if number == 1 else line
        if line.strip():
            yield Unit(f"{name}:{number}", f"line-{number}", _shown(line), len(line), partial(_json_row, line, encoding))


def _json_row(line: bytes, encoding: str) -> Row:
    value = parse_json(decoded(line, encoding))
    if not isinstance(value, dict):
        raise InputError(f"the line holds a {type(value).__name__}: a record is an object")
    return value


def _shown(raw: bytes) -> str:
    return raw[: 4 * MAX_RAW_CHARS].decode("utf-8", "replace")[:MAX_RAW_CHARS]
