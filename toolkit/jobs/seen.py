"""Seen: the ids that an input has used so far, kept on the disk, so that their number costs no memory.

In: an id and where it stands.   Out: where it stood before, or None.
Knows nothing about: records. The file is SQLite's own temporary one: nobody else sees it, and it is gone with the process.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from types import TracebackType

from toolkit.errors import EngineError


class Seen:
    """A context manager; `first` may be called from any one thread at a time."""

    def __init__(self) -> None:
        self._ids = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._ids.execute("pragma journal_mode = off")
        self._ids.execute("create table seen (id blob primary key, place text) without rowid")
        self._ids.execute("begin")

    def before(self, name: str, where: str) -> str | None:
        """Where the id stood before; None (and it is noted) where this is its first place."""
        key = name.encode("utf-8", "surrogatepass")
        try:
            if self._ids.execute("insert or ignore into seen values (?, ?)", (key, where)).rowcount:
                return None
            with closing(self._ids.execute("select place from seen where id = ?", (key,))) as found:
                return str(found.fetchone()[0])
        except sqlite3.Error as error:
            raise EngineError(
                f"the ids of the input cannot be kept: {error}", hint="is the disk of temporary files full?"
            ) from None

    def __enter__(self) -> Seen:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ids.close()
