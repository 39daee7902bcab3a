"""Terms: what a job was, so that a resume under other terms is refused; and the lock of its one writer.

In: OUT and the terms of now.   Out: the open, locked file OUT.job.json, or a UsageError that names what differs.
Knows nothing about: records, engines.
Invariants: one process writes a job (a file lock that dies with its process); a file that no job wrote is never changed; no
record is written before the terms are whole on the disk; terms that were changed on request keep a note of what and from which
index on, and what differs in the input is never changed at all: indexes would mean other records.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from toolkit.contracts import Json
from toolkit.errors import InputError, UsageError
from toolkit.jobs.places import errors_path, lines_path, terms_path
from toolkit.results import json_text
from toolkit.schema import MAX_DEPTH, parse_json

FORMAT = 1
MAX_TERMS_BYTES = 1 << 20  # that another job's terms may be longer than this one's
MAX_CHECKED_BYTES = 16 << 20  # larger terms are compared under the lock alone
MAY_CHANGE = ("job", "engine")
CHANGES = "changes"


def lock_terms(out: Path) -> IO[bytes]:
    """OUT.job.json, open and locked; UsageError where another process has it."""
    path = terms_path(out)
    while True:
        lock = path.open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.fstat(lock.fileno()).st_ino == path.stat().st_ino:
                return lock
        except OSError:
            lock.close()
            raise UsageError(f"output {out} is being written by another process", hint="wait for it, or name another") from None
        lock.close()  # it was replaced between the two calls: the lock must be on the one that has the name


def claim(out: Path, terms: Mapping[str, Json], lock: IO[bytes], *, accept: bool, position: Callable[[], int]) -> IO[bytes]:
    """Compare with the terms on the disk, or write them where there are none. Returns the lock that holds from now on.

    `accept` takes over changed terms, from index `position()` on, and notes them. Terms cut short are none, if they are the
    beginning of these: no record is written before they are whole, so beside them there is no line.
    """
    path = terms_path(out)
    now = json_text({"format": FORMAT, **terms}).encode() + b"\n"
    if path.stat().st_size > len(now) + MAX_TERMS_BYTES:
        raise UsageError(f"{path} is no job's: it has {path.stat().st_size} bytes", hint="name another output")
    before = path.read_bytes()
    if before.endswith(b"\n"):
        return _compared(out, before, now, lock, accept, position)
    if not now.startswith(before) or any(_size(each) for each in (lines_path(out), errors_path(out))):
        raise UsageError(
            f"{path} was not written by this job, or is damaged",
            hint="name another output, or delete the file if it is a job's",
        )
    lock.truncate(0)
    lock.write(now)
    lock.flush()
    os.fsync(lock.fileno())
    sync_folder(out.parent)
    return lock


def sync_folder(folder: Path) -> None:
    """Names in the folder, too, are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def check_same(out: Path, terms: Mapping[str, Json], *, accept: bool) -> None:
    """UsageError where some of a job's terms are not those on the disk, as `claim` will see it; nothing is changed."""
    path = terms_path(out)
    raw = path.read_bytes() if path.stat().st_size <= MAX_CHECKED_BYTES else b""
    try:
        old = parse_json(raw, max_depth=2 * MAX_DEPTH) if raw.endswith(b"\n") else None
    except InputError:
        return  # `claim` says what is wrong with it
    if isinstance(old, dict):
        new = parse_json(json_text(terms), max_depth=2 * MAX_DEPTH)
        _refuse(out, list(_differences({name: old.get(name) for name in terms}, new)), accept=accept)


def _compared(out: Path, raw: bytes, now: bytes, lock: IO[bytes], accept: bool, position: Callable[[], int]) -> IO[bytes]:
    try:
        old, new = (parse_json(each, max_depth=2 * MAX_DEPTH) for each in (raw, now))
    except InputError:
        old = new = None
    if not isinstance(old, dict) or not isinstance(new, dict):
        raise UsageError(f"{terms_path(out)} is damaged, or no job's", hint="the job cannot be resumed: name another output")
    noted = old.pop(CHANGES, [])
    found = list(_differences(old, new))
    if not found:
        return lock
    _refuse(out, found, accept=accept and isinstance(noted, list))
    change = {"from_index": position(), "what": [list(each) for each in found]}
    return _replaced(out, json_text({**new, CHANGES: [*noted, change]}).encode() + b"\n", lock)


def _refuse(out: Path, found: Sequence[tuple[str, str, str]], *, accept: bool) -> None:
    shown = "; ".join(f"{path or 'the whole'}: {before} -> {after}" for path, before, after in found[:5])
    fixed = any(path.partition(".")[0] not in MAY_CHANGE for path, _, _ in found)
    if found and (fixed or not accept):
        hint = "name another output" if fixed else "resume with the same terms, --accept-changes, or name another output"
        raise UsageError(f"output {out} belongs to another job: {shown}", hint=hint)


def _replaced(out: Path, text: bytes, lock: IO[bytes]) -> IO[bytes]:
    """Put other terms in the place of the old, whole or not at all; both files are locked while the name changes hands."""
    path = terms_path(out)
    fresh = path.with_name(path.name + ".new")
    with fresh.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new_lock = fresh.open("ab")
    fcntl.flock(new_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fresh.replace(path)
    sync_folder(out.parent)
    lock.close()
    return new_lock


def _differences(before: Json, now: Json, path: str = "") -> Iterator[tuple[str, str, str]]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            yield from _differences(before.get(key), now.get(key), f"{path}.{key}" if path else key)
    elif before != now:
        yield path, json.dumps(before)[:80], json.dumps(now)[:80]
