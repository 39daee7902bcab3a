"""Spans: where the parts of a JSON text lie, in bytes.

In: a valid JSON text.   Out: JSON pointer -> [start, end) in UTF-8 bytes, strings with their quotes.
Knows nothing about: tokens (whoever has token byte offsets can intersect).
Invariants: `text.encode()[start:end]` is itself the JSON text of the value at that pointer.
"""

from __future__ import annotations

from itertools import accumulate

from toolkit.schema import read_spans


def value_spans(text: str) -> dict[str, tuple[int, int]]:
    """Byte spans of every scalar. Raises InputError where the text is not JSON."""
    spans = {pointer: span for pointer, span in read_spans(text).items() if not span.container}
    if text.isascii():
        return {pointer: (span.start, span.end) for pointer, span in spans.items()}
    offset = [0, *accumulate(len(char.encode()) for char in text)]
    return {pointer: (offset[span.start], offset[span.end]) for pointer, span in spans.items()}
