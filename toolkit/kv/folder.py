"""BlockFolder: a bounded folder of checked blobs of one size, shared by any number of processes.

    <key in hex>.kv    HEAD, key, sha256(key, payload), payload

In: keys and payloads.   Out: payloads, exactly as they were given, or None.
Knows nothing about: what a payload says. No byte of it is interpreted here.
Invariants: a file appears whole or not at all (written aside, renamed); it is read only if its type, size, header, key and checksum
are the expected ones, so torn, damaged, foreign and strange files (links, pipes, folders) are counted and passed over. Together
the files stay within `most_bytes`, whoever wrote them: the least recently used go first. Who writes holds the folder's lock, who
reads needs none. A checksum is no signature: a folder that another user may write to is refused.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from toolkit.errors import UsageError

HEAD = b"toolkit-kv 1\n\0\0\0"
KEY = sha256().digest_size  # bytes of a key
OVERHEAD = len(HEAD) + 2 * KEY
OUTCOMES = ("read", "written", "refused", "evicted", "failed")
_SUFFIX, _SPARE = ".kv", ".part"
_PATIENCE_S, _NAP_S = 0.1, 0.005  # for another process that writes; after that these blobs are not kept
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # neither a link nor a pipe leads or holds anybody


class BlockFolder:
    """Payloads of `size` bytes by key. `counts` has an entry for every row of OUTCOMES."""

    def __init__(self, path: Path, size: int, *, most_bytes: int) -> None:
        """Make the folder where there is none. UsageError where it cannot be used or another user may write to it."""
        if most_bytes < size + OVERHEAD:
            raise UsageError(
                f"prefix_bytes = {most_bytes} is not allowed: a block of keys and values of this model takes {size + OVERHEAD}"
            )
        self.path, self.size, self.most_bytes = path, size, most_bytes
        self.counts = dict.fromkeys(OUTCOMES, 0)
        self._mine: set[bytes] = set()  # written by this process
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            about = path.stat()
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(f"prefix_dir {path} cannot be used: {error.strerror or error}") from error
        if about.st_uid != os.getuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            os.close(self._lock)
            raise UsageError(
                f"prefix_dir {path} can be written by other users, who could change what the model says",
                hint=f"chmod 700 {path}, or name a folder of your own",
            )

    def read(self, key: bytes) -> memoryview | None:
        """The payload of a key, None where there is none or its file is not whole and right."""
        try:
            handle = os.open(self._place(key), _FLAGS)
        except FileNotFoundError:
            return None
        except OSError:
            self.counts["refused"] += 1
            return None
        try:
            found = self._checked(handle, key)
        except OSError:
            found = None
        finally:
            os.close(handle)
        self.counts["refused" if found is None else "read"] += 1
        return found

    def write(self, blobs: Mapping[bytes, Iterable[bytes | memoryview]]) -> set[bytes]:
        """Keep payloads, given in pieces, as far as there is room for all of them together; returns the keys that were kept.

        Nothing is kept while another process writes for long, or where the folder cannot be written.
        """
        kept: set[bytes] = set()
        with self._locked() as ours:
            if not ours:
                self.counts["failed"] += len(blobs)
                return kept
            room = min(len(blobs), self.most_bytes // (self.size + OVERHEAD)) if self._evict(len(blobs)) else 0
            for key, pieces in list(blobs.items())[:room]:
                if not self._put(key, pieces):
                    break
                kept.add(key)
        self._mine |= kept
        self.counts["written"] += len(kept)
        self.counts["failed"] += len(blobs) - len(kept)
        return kept

    def touch(self, keys: Iterable[bytes]) -> None:
        """Say that these were used now, the first of them last: what others build on outlives them."""
        now = time.time_ns()
        for age, key in enumerate(keys):
            with suppress(OSError):
                os.utime(self._place(key), ns=(now - age, now - age), follow_symlinks=False)

    def forget_mine(self) -> None:
        """Delete whatever this process has written."""
        for key in self._mine:
            with suppress(OSError):
                self._place(key).unlink()
        self._mine.clear()

    def close(self) -> None:
        """Let go of the lock's file; closing twice is harmless."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def _checked(self, handle: int, key: bytes) -> memoryview | None:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_size != OVERHEAD + self.size:
            return None
        whole = memoryview(bytearray(about.st_size))
        at = 0
        while at < len(whole) and (count := os.readv(handle, [whole[at:]])):
            at += count
        payload = whole[OVERHEAD:]
        head = HEAD + key + sha256(key + payload).digest() if at == len(whole) else b""
        return payload if whole[:OVERHEAD] == head else None

    def _put(self, key: bytes, pieces: Iterable[bytes | memoryview]) -> bool:
        """One file, whole or not at all."""
        body = b"".join(pieces)
        place, spare = self._place(key), self.path / f"{key.hex()}{_SPARE}"
        try:
            with os.fdopen(os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(HEAD + key + sha256(key + body).digest())
                file.write(body)
            spare.replace(place)
        except OSError:  # no room, no right, or a folder of that name
            with suppress(OSError):
                spare.unlink()
            return False
        return True

    def _evict(self, blobs: int) -> bool:
        """Delete the least recently used until so many more fit, or all; False where the folder cannot be read.

        Leftovers of writers that died go too.
        """
        found: list[tuple[int, int, Path]] = []
        try:
            entries = list(self.path.iterdir())
        except OSError:
            return False
        for entry in entries:
            with suppress(OSError):
                if entry.suffix == _SPARE:
                    entry.unlink()
                elif entry.suffix == _SUFFIX:
                    about = entry.lstat()
                    found.append((about.st_mtime_ns, about.st_size, entry))
        over = sum(size for _, size, _ in found) + blobs * (self.size + OVERHEAD) - self.most_bytes
        for _, size, path in sorted(found):
            if over <= 0:
                break
            with suppress(OSError):
                path.unlink()
                over -= size
                self.counts["evicted"] += 1
        return True

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Whether the folder is this process's to write, waited for a moment."""
        until = time.monotonic() + _PATIENCE_S
        while not (ours := _take(self._lock)) and time.monotonic() < until:
            time.sleep(_NAP_S)
        try:
            yield ours
        finally:
            if ours:
                fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _place(self, key: bytes) -> Path:
        return self.path / f"{key.hex()}{_SUFFIX}"


def _take(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
