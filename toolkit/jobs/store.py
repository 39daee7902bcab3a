"""Store: the output of a job on disk, which survives being killed at any moment.

OUT                one line per record that has a valid value
OUT.errors.jsonl   one line per record that has none
OUT.job.json       what the job was (input, options, schema, model): a resume under other terms is refused

In: lines in input order, each with its `index`.   Out: files; after a kill, the index to go on from.
Knows nothing about: engines, prompts, how a line comes about.
Invariants: every index below `position` is in exactly one of the two files and none at or above it is; a line is on the disk
(flush and fsync, one line at a time: a record takes far longer) before the next is written; one writer at a time (a file lock that
dies with its process).
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from toolkit.contracts import Json
from toolkit.errors import InputError, UsageError

FORMAT = 1


class Store:
    """Open with `open_store`, then `add` or `fail` every record in order; `position` is the index of the next one."""

    def __init__(self, out: Path, *, position: int, failures: Counter[str], lock: IO[bytes]) -> None:
        self.position = position
        self.failures = failures  # by stage, earlier runs included
        self._lock = lock
        self._out = out.open("ab")
        self._errors = errors_path(out).open("ab")

    def add(self, line: Mapping[str, Json]) -> None:
        """Write the line of a record that has a value."""
        self._write(self._out, line)

    def fail(self, line: Mapping[str, Json]) -> None:
        """Write the line of a record that has none; it has a `stage`."""
        self._write(self._errors, line)
        self.failures[line["stage"]] += 1

    def _write(self, file: IO[bytes], line: Mapping[str, Json]) -> None:
        data = json.dumps({**line, "index": self.position}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        file.write(data.encode("utf-8", "backslashreplace") + b"\n")
        file.flush()
        os.fsync(file.fileno())
        self.position += 1

    def close(self) -> None:
        """Close the files and let the lock go."""
        for file in (self._out, self._errors, self._lock):
            file.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def errors_path(out: Path) -> Path:
    """Where failures go."""
    return out.with_name(out.name + ".errors.jsonl")


def manifest_path(out: Path) -> Path:
    """Where the job's terms are kept."""
    return out.with_name(out.name + ".job.json")


def check_free(out: Path, *, resume: bool) -> None:
    """UsageError where OUT cannot be written: no such folder, a folder itself, or (without `resume`) there already."""
    if not out.parent.is_dir():
        raise UsageError(f"the folder {out.parent} of the output does not exist", hint="make it first")
    for path in (out, errors_path(out), manifest_path(out)):
        if path.is_dir():
            raise UsageError(f"output {path} is a folder: it must be a file")
        if path.exists() and not resume:
            raise UsageError(f"output {path} exists", hint="--resume goes on with it; or name another, or delete it")
    if out.exists() and not manifest_path(out).exists():
        raise UsageError(f"output {out} has no {manifest_path(out).name} beside it: no job wrote it", hint="name another")


def open_store(out: Path, terms: Mapping[str, Json], *, resume: bool) -> Store:
    """The store of a new job, or with `resume` of the one in OUT. UsageError where it is another job, or being written."""
    check_free(out, resume=resume)
    lock = manifest_path(out).open("ab")
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"output {out} is being written by another process", hint="wait for it, or name another") from None
        before = manifest_path(out).read_bytes()
        if before.endswith(b"\n"):
            _compare(out, before, terms)
        else:
            _begin(out, terms, lock)
        position, failures = _recover(out)
        return Store(out, position=position, failures=failures, lock=lock)
    except BaseException:
        lock.close()
        raise


def _begin(out: Path, terms: Mapping[str, Json], lock: IO[bytes]) -> None:
    """Write the manifest. One cut short (no newline) counts as none: no record has been written before it was whole."""
    lock.truncate(0)
    lock.write(json.dumps({"format": FORMAT, **terms}, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
    lock.flush()
    os.fsync(lock.fileno())
    folder = os.open(out.parent, os.O_RDONLY)
    os.fsync(folder)  # the name, too, is on the disk
    os.close(folder)


def _compare(out: Path, raw: bytes, terms: Mapping[str, Json]) -> None:
    try:
        before = json.loads(raw)
    except ValueError:
        raise UsageError(f"{manifest_path(out)} is damaged", hint="the job cannot be resumed: name another output") from None
    now = json.loads(json.dumps({"format": FORMAT, **terms}))
    changed = [f"{path}: {old} -> {new}" for path, old, new in _differences(before, now)]
    if changed:
        shown = "; ".join(changed[:5])
        raise UsageError(
            f"output {out} belongs to another job: {shown}", hint="resume with the same terms, or name another output"
        )


def _differences(before: Json, now: Json, path: str = "") -> Iterator[tuple[str, str, str]]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            yield from _differences(before.get(key), now.get(key), f"{path}.{key}" if path else key)
    elif before != now:
        yield path, json.dumps(before)[:80], json.dumps(now)[:80]


def _recover(out: Path) -> tuple[int, Counter[str]]:
    """Cut torn tails, and lines after a gap (possible only if the disk lost writes), off both files."""
    written = _scan(out)
    failed = _scan(errors_path(out))
    known = {index for index, _, _ in (*written, *failed)}
    position = next(index for index in range(len(known) + 1) if index not in known)
    for path, lines in ((out, written), (errors_path(out), failed)):
        if path.exists():
            with path.open("r+b") as file:
                file.truncate(max((end for index, _, end in lines if index < position), default=0))
                os.fsync(file.fileno())
    return position, Counter(stage for index, stage, _ in failed if index < position)


def _scan(path: Path) -> list[tuple[int, str, int]]:
    """(index, stage, offset of the end) of every whole line; InputError for a line that no job wrote."""
    found: list[tuple[int, str, int]] = []
    if not path.exists():
        return found
    end = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.endswith(b"\n"):
                break
            end += len(raw)
            try:
                line = json.loads(raw)
                found.append((int(line["index"]), str(line.get("stage", "")), end))
            except (ValueError, TypeError, KeyError, AttributeError):
                raise InputError(f"{path}:{number} was not written by a job", hint="name another output") from None
    return found
