"""Places: the files of one job, and whether they may be written.

OUT                    one line per record that has a valid value (OUT.lines.jsonl where OUT is .parquet, which is made of it)
OUT.errors.jsonl       one line per record that has none
OUT.job.json           the terms of the job: input, options, schema, model; also the lock of its one writer
OUT.manifest.json      what came of it so far: counts, timing, versions
OUT.retry.jsonl        second tries that are not in the other files yet; gone when they are

In: OUT.   Out: paths, or a UsageError that says why OUT cannot be one.
Knows nothing about: what is in the files.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolkit.errors import EngineError, UsageError

PARQUET = ".parquet"
NOT_ITS_NAME = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
ENDINGS = ("", ".jsonl", ".ndjson", PARQUET)


def lines_path(out: Path) -> Path:
    """Where the lines of results are: `out` itself, unless that is a Parquet file."""
    return out.with_name(out.name + ".lines.jsonl") if out.suffix == PARQUET else out


def errors_path(out: Path) -> Path:
    """Where failures go."""
    return out.with_name(out.name + ".errors.jsonl")


def terms_path(out: Path) -> Path:
    """Where the job's terms are kept."""
    return out.with_name(out.name + ".job.json")


def manifest_path(out: Path) -> Path:
    """Where it stands what came of the job."""
    return out.with_name(out.name + ".manifest.json")


def retry_path(out: Path) -> Path:
    """Where second tries are kept until they take the place of the failures."""
    return out.with_name(out.name + ".retry.jsonl")


def places(out: Path) -> tuple[Path, ...]:
    """Every file that a job writes beside or as `out`."""
    found = (out, lines_path(out), errors_path(out), terms_path(out), manifest_path(out), retry_path(out))
    return tuple(dict.fromkeys(found))


def check_ending(out: Path) -> None:
    """UsageError where OUT's name promises another format than a job writes."""
    if out.suffix not in ENDINGS:
        raise UsageError(
            f"output {out} ends in {out.suffix!r}: a job writes JSON lines (.jsonl, .ndjson, no ending) or {PARQUET}",
            hint=f"name {out.with_suffix('.jsonl').name}",
        )


def check_free(out: Path, *, resume: bool) -> None:
    """UsageError where OUT cannot be written: no such folder, no plain file, or (without `resume`) there already."""
    if str(out) == "-":
        raise UsageError(
            "output - is not possible: a job writes files, so that it can be resumed", hint="name a file, then read it"
        )
    with writable(out):
        if not out.parent.is_dir():
            raise UsageError(f"the folder {out.parent} of the output does not exist", hint="make it first")
        for path in places(out):
            _check_one(path, resume)
        for path in (lines_path(out), errors_path(out), retry_path(out)):
            if path.exists() and not terms_path(out).exists():
                raise UsageError(f"output {path} has no {terms_path(out).name} beside it: no job wrote it", hint="name another")


def _check_one(path: Path, resume: bool) -> None:
    if path.is_dir():
        raise UsageError(f"output {path} is a folder: it must be a file")
    if path.exists() and not path.is_file():
        raise UsageError(f"output {path} is a device or a pipe: it must be a file", hint="name a file that is not there yet")
    if path.exists() and not resume:
        raise UsageError(f"output {path} exists", hint="--resume goes on with it; or name another, or delete it")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"output {path} cannot be written: permission denied", hint="name another")


@contextmanager
def writable(out: Path) -> Iterator[None]:
    """An OSError inside becomes an error about the output: of usage, unless a disk is full or broken."""
    try:
        yield
    except OSError as error:
        if error.errno in NOT_ITS_NAME:
            raise EngineError(
                f"output {error.filename or out} cannot be written: {error.strerror}", hint="--resume goes on"
            ) from None
        raise UsageError(f"output {error.filename or out} cannot be written: {error.strerror}", hint="name another") from None
