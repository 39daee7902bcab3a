"""Equality kept: settings that were compared before, so that a run of hours goes on where it was cut.

In: a JSONL file, what a setting was compared with and by (its terms).   Out: the setting of those very terms, or None.
Knows nothing about: engines, how texts are compared.
Invariants: a setting is found again only under the hash of all its terms; a line is written once its setting is whole; a line that is
torn or no setting is passed over, so that the worst a damaged file does is that a setting is compared again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from toolkit.bench.equality_rows import Setting
from toolkit.contracts import Json
from toolkit.errors import EngineError, UsageError

_MOST_BYTES = 64 << 20


class Kept:
    """The settings of one file. UsageError where it cannot be read or is too large."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[str, Setting] = {}
        try:
            if file.exists() and (not file.is_file() or file.stat().st_size > _MOST_BYTES):
                raise UsageError(f"{file} is no file of settings: a regular one of at most {_MOST_BYTES} bytes is")
            lines = file.read_bytes().split(b"\n") if file.exists() else []
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror or error}") from error
        self._is_torn = lines[-1:] not in ([], [b""])
        for line in lines:
            try:
                told = json.loads(line)
                self._known[str(told["terms"])] = Setting.of(told["setting"])
            except (ValueError, KeyError, TypeError, RecursionError):
                continue

    def find(self, terms: Mapping[str, Json]) -> Setting | None:
        """What came of the setting with exactly these terms, if it is here."""
        return self._known.get(_hash(terms))

    def add(self, terms: Mapping[str, Json], setting: Setting) -> None:
        """Keep one more, on the disk before this returns. EngineError where the file cannot be written."""
        line = json.dumps({"terms": _hash(terms), "setting": setting.told()}) + "\n"
        try:
            with self._file.open("a", encoding="utf-8") as file:
                file.write("\n" * self._is_torn + line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise EngineError(
                f"{self._file} cannot be written: {error.strerror or error}", hint="name another --keep"
            ) from error
        self._is_torn = False


def _hash(terms: Mapping[str, Json]) -> str:
    return hashlib.sha256(json.dumps(terms, sort_keys=True).encode()).hexdigest()
