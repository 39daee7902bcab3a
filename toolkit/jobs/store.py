"""Store: the output of a job on disk, which survives being killed at any moment.

OUT                one line per record that has a valid value
OUT.errors.jsonl   one line per record that has none
OUT.job.json       what the job was (input, options, schema, model): a resume under other terms is refused

In: lines in input order, each with its `index`.   Out: files; after a kill, the index to go on from.
Knows nothing about: engines, prompts, how a line comes about.
Invariants: every index below `position` is in exactly one of the two files and none at or above it is; a line is on the disk
(flush and fsync, one line at a time: a record takes far longer) before the next is written; one writer at a time (a file lock that
dies with its process); a file that no job wrote is never changed.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from toolkit.contracts import Json
from toolkit.errors import EngineError, InputError, UsageError
from toolkit.results import json_text
from toolkit.schema import MAX_DEPTH, parse_json

FORMAT = 1
MAX_MANIFEST_BYTES = 1 << 20  # that another job's manifest may be longer than this one's


class Store:
    """Open with `open_store`, then `add` or `fail` every record in order; `position` is the index of the next one.

    `dropped` counts whole lines that were cut off because one before them is gone: their records come again.
    """

    def __init__(self, out: Path, *, position: int, dropped: int, failures: Counter[str], lock: IO[bytes]) -> None:
        self.position = position
        self.dropped = dropped
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
        data = json_text({**line, "index": self.position})
        try:
            file.write(data.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            raise EngineError(f"output {file.name} cannot be written: {error.strerror}", hint="--resume goes on") from None
        self.position += 1

    def close(self) -> None:
        """Close the files and let the lock go."""
        for file in (self._out, self._errors, self._lock):
            with suppress(OSError):  # of a line that could not be written, and was reported
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
    """UsageError where OUT cannot be written: no such folder, no plain file, or (without `resume`) there already."""
    if str(out) == "-":
        raise UsageError(
            "output - is not possible: a job writes files, so that it can be resumed", hint="name a file, then read it"
        )
    with _writable(out):
        if not out.parent.is_dir():
            raise UsageError(f"the folder {out.parent} of the output does not exist", hint="make it first")
        for path in (out, errors_path(out), manifest_path(out)):
            if path.is_dir():
                raise UsageError(f"output {path} is a folder: it must be a file")
            if path.exists() and not path.is_file():
                raise UsageError(
                    f"output {path} is a device or a pipe: it must be a file", hint="name a file that is not there yet"
                )
            if path.exists() and not resume:
                raise UsageError(f"output {path} exists", hint="--resume goes on with it; or name another, or delete it")
            if not os.access(path if path.exists() else path.parent, os.W_OK):
                raise UsageError(f"output {path} cannot be written: permission denied", hint="name another")
        for path in (out, errors_path(out)):
            if path.exists() and not manifest_path(out).exists():
                raise UsageError(
                    f"output {path} has no {manifest_path(out).name} beside it: no job wrote it", hint="name another"
                )


@contextmanager
def _writable(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"output {error.filename or out} cannot be written: {error.strerror}", hint="name another") from None


def open_store(out: Path, terms: Mapping[str, Json], *, resume: bool) -> Store:
    """The store of a new job, or with `resume` of the one in OUT. UsageError where it is another job, or being written."""
    check_free(out, resume=resume)
    with _writable(out):
        lock = manifest_path(out).open("ab")
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UsageError(
                    f"output {out} is being written by another process", hint="wait for it, or name another"
                ) from None
            _claim(out, json_text({"format": FORMAT, **terms}).encode() + b"\n", lock)
            position, dropped, failures = _recover(out)
            return Store(out, position=position, dropped=dropped, failures=failures, lock=lock)
        except BaseException:
            lock.close()
            raise


def _claim(out: Path, manifest: bytes, lock: IO[bytes]) -> None:
    """Compare the manifest, or write it where there is none. One cut short is none, if it is the beginning of this one.

    No record is written before the manifest is whole, so beside one cut short there is no line.
    """
    path = manifest_path(out)
    if path.stat().st_size > len(manifest) + MAX_MANIFEST_BYTES:
        raise UsageError(f"{path} is no job's: it has {path.stat().st_size} bytes", hint="name another output")
    before = path.read_bytes()
    if before.endswith(b"\n"):
        _compare(out, before, manifest)
    elif manifest.startswith(before) and not any(_size(each) for each in (out, errors_path(out))):
        lock.truncate(0)
        lock.write(manifest)
        lock.flush()
        os.fsync(lock.fileno())
        folder = os.open(out.parent, os.O_RDONLY)
        os.fsync(folder)  # the name, too, is on the disk
        os.close(folder)
    else:
        raise UsageError(
            f"{path} was not written by this job, or is damaged",
            hint="name another output, or delete the file if it is a job's",
        )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _compare(out: Path, raw: bytes, manifest: bytes) -> None:
    try:
        before, now = (parse_json(each, max_depth=2 * MAX_DEPTH) for each in (raw, manifest))
    except InputError:
        raise UsageError(
            f"{manifest_path(out)} is damaged, or no job's", hint="the job cannot be resumed: name another output"
        ) from None
    changed = [f"{path or 'the whole'}: {old} -> {new}" for path, old, new in _differences(before, now)]
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


def _recover(out: Path) -> tuple[int, int, Counter[str]]:
    """Cut torn tails, and lines after one that is gone, off both files: next index, lines cut, failures by stage."""
    written = _scan(out)
    failed = _scan(errors_path(out))
    known = {index for index, _, _ in (*written, *failed)}
    position = next(index for index in range(len(known) + 1) if index not in known)
    for path, lines in ((out, written), (errors_path(out), failed)):
        if path.exists():
            with path.open("r+b") as file:
                file.truncate(max((end for index, _, end in lines if index < position), default=0))
                os.fsync(file.fileno())
    dropped = sum(index >= position for index, _, _ in (*written, *failed))
    return position, dropped, Counter(stage for index, stage, _ in failed if index < position)


def _scan(path: Path) -> list[tuple[int, str, int]]:
    """(index, stage, offset of the end) of every whole line, in order; UsageError for a line that no job wrote."""
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
                index = int(line["index"])
                stage = str(line.get("stage", ""))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                raise UsageError(f"{path}:{number} was not written by a job", hint="name another output") from None
            if found and index <= found[-1][0]:
                raise UsageError(
                    f"{path}:{number} has index {index} behind {found[-1][0]}: no job wrote it so", hint="name another output"
                )
            found.append((index, stage, end))
    return found
