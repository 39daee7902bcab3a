"""Packed: files that may be compressed, read as they are unpacked.

In: an open file and its name.   Out: its bytes, unpacked for .gz and .zst.
Knows nothing about: records.
Invariants: nothing is unpacked ahead of what is read, so a small file that unpacks to a huge one costs no memory; a damaged one is an
InputError that says so; a reader that is not installed is a MissingExtraError.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import IO, Any, BinaryIO, cast

from toolkit.errors import InputError, MissingExtraError

PACKED = (".gz", ".zst")
FED = 1024
MAX_WINDOW = 1 << 27


def bare(path: PurePath) -> PurePath:
    """The name without the ending of a packed file."""
    return path.with_suffix("") if path.suffix in PACKED else path


@contextmanager
def unpacked(file: IO[bytes], name: PurePath) -> Iterator[IO[bytes]]:
    """The file's own bytes, or those that it unpacks to; closes it."""
    with file:
        if name.suffix == ".gz":
            with gzip.GzipFile(fileobj=cast(BinaryIO, file)) as stream, _intact():
                yield cast(IO[bytes], stream)
        elif name.suffix == ".zst":
            with _zstd(file) as stream, _intact():
                yield stream
        else:
            yield file


@contextmanager
def _intact() -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"the packed file is damaged: {error}") from None
    except Exception as error:
        if type(error).__name__ != "ZstdError":
            raise
        raise InputError(f"the packed file is damaged: {error}") from None


def _zstd(file: IO[bytes]) -> IO[bytes]:
    try:
        import zstandard
    except ModuleNotFoundError:
        raise MissingExtraError("zstandard", "data") from None
    stream = _Zstd(file, zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).decompressobj)
    return cast(IO[bytes], io.BufferedReader(stream))


class _Zstd(io.RawIOBase):
    """Frames one after another; the end inside a frame is an error. A step of FED bytes unpacks to at most some tens of MB."""

    def __init__(self, file: IO[bytes], frame: Callable[[], Any]) -> None:
        self._file, self._new = file, frame
        self._frame: Any = None
        self._made, self._rest = memoryview(b""), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._made:
            given = self._rest or self._file.read(FED)
            self._rest = b""
            if not given:
                if self._frame is not None:
                    raise EOFError("it ends in the middle")
                return 0
            self._frame = self._frame or self._new()
            self._made = memoryview(self._frame.decompress(given))
            if self._frame.eof:
                self._rest, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._made))
        buffer[:size] = self._made[:size]
        self._made = self._made[size:]
        return size
