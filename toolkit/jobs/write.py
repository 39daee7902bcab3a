"""Write: lines of JSON to the end of a file.

In: records of plain JSON.   Out: whole lines, handed to the operating system one by one (a kill -9 cannot take them back), on the
disk at the latest SYNC_EVERY_S after the next one comes, and at the close.
Knows nothing about: what the lines say.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from toolkit.contracts import Json
from toolkit.errors import EngineError
from toolkit.results import json_text

SYNC_EVERY_S = 0.2


class LineFile:
    """A file open for appending. EngineError where it cannot be written, such as on a full disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._synced_at = 0.0
        self._clean = True

    def put(self, line: Mapping[str, Json]) -> None:
        """Write one line; it has been handed over whole when this returns."""
        data = memoryview(json_text(line).encode() + b"\n")
        try:
            while data:
                data = data[self._file.write(data) :]
            self._clean = False
            if time.monotonic() - self._synced_at > SYNC_EVERY_S:
                self._sync()
        except OSError as error:
            raise self._failed(error) from None

    def close(self) -> None:
        """Everything is on the disk; EngineError where that fails. Closing twice is harmless."""
        try:
            if not self._file.closed and not self._clean:
                self._sync()
        except OSError as error:
            raise self._failed(error) from None
        finally:
            with suppress(OSError):
                self._file.close()

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._clean, self._synced_at = True, time.monotonic()

    def _failed(self, error: OSError) -> EngineError:
        return EngineError(f"output {self._path} cannot be written: {error.strerror}", hint="--resume goes on")
