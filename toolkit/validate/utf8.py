"""Utf8: bytes, cut anywhere, to text in which every byte that is no UTF-8 is still there.

In: pieces of bytes.   Out: pieces of text; a byte that is no UTF-8 is a character in U+DC80..U+DCFF, which no UTF-8 makes.
Knows nothing about: what the text is.
Invariants: however the bytes are cut, the text is the same, and `size` of it is their number.
"""

from __future__ import annotations

import codecs
import re

from toolkit.errors import UsageError

_BYTE = re.compile("[\udc80-\udcff]")


class Utf8:
    """An incremental decoder."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def text(self, data: bytes, *, last: bool = False) -> str:
        """The text of the next bytes; a character that is cut comes with its rest, or with the `last` bytes as what it is."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise UsageError(f"a stream is fed bytes, not {type(data).__name__}", hint="text.encode()")
        return self._decoder.decode(bytes(data), last)

    @property
    def is_inside(self) -> bool:
        """Whether the bytes so far end inside a character."""
        return bool(self._decoder.getstate()[0])


def size(text: str) -> int:
    """How many bytes a text of `Utf8` came from."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))


def shown_text(text: str) -> str:
    """The text with one U+FFFD for every byte that is no UTF-8."""
    return text if text.isascii() else _BYTE.sub("\ufffd", text)


def first_byte(text: str) -> int | None:
    """Index of the first character that stands for a byte."""
    found = None if text.isascii() else _BYTE.search(text)
    return None if found is None else found.start()
