"""Folder: what lies in an input folder, and only its regular files opened.

In: a folder, or a path in it.   Out: paths in a fixed order; an open file, or an InputError that says what else it is.
Knows nothing about: records, encodings.
Invariants: a link is never followed; nothing that could block or never end (a pipe, a device) is read; whatever is left unread is
listed, so that it can be reported.
"""

from __future__ import annotations

import os
import stat
from io import BufferedReader
from pathlib import Path

from toolkit.errors import InputError, UsageError


def walk(folder: Path) -> list[Path]:
    """All that is below but folders, hidden names left out, links not followed, by relative path; folders that cannot be listed."""
    found: list[Path] = []

    def unlisted(error: OSError) -> None:
        found.append(Path(error.filename))

    for here, folders, names in os.walk(folder, onerror=unlisted):
        folders[:] = [name for name in folders if not name.startswith(".")]
        links = [name for name in folders if Path(here, name).is_symlink()]
        found += [Path(here, name) for name in (*names, *links) if not name.startswith(".")]
    if found == [folder]:
        raise UsageError(f"input folder {folder} cannot be listed")
    return sorted(found)


def text_name(name: str) -> str:
    """A file's name as text: bytes that are not UTF-8 as %XX."""
    return "".join(f"%{ord(char) - 0xDC00:02X}" if "\udc80" <= char <= "\udcff" else char for char in name)


def open_regular(path: Path) -> BufferedReader:
    """The open file; InputError where it is anything but a regular file or cannot be opened. Never waits for a pipe's other end."""
    try:
        if path.is_symlink():
            raise InputError("a symbolic link is not followed")
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise InputError(f"it cannot be read: {error.strerror}") from None
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise InputError("it is not a regular file, but a pipe, a device or a folder that cannot be listed")
