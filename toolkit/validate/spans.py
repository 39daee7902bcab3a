"""Spans: where the parts of a JSON text lie, in bytes.

In: a valid JSON text.   Out: JSON pointer -> [start, end) in UTF-8 bytes, strings with their quotes.
Knows nothing about: tokens (whoever has token byte offsets can intersect).
Invariants: `text.encode()[start:end]` is itself the JSON text of the value at that pointer.
"""

from __future__ import annotations

from itertools import accumulate

from toolkit.schema import Span, read_spans


def value_spans(text: str) -> dict[str, tuple[int, int]]:
    """Byte spans of every scalar. Raises InputError where the text is not JSON."""
    return {pointer: (span.start, span.end) for pointer, span in all_spans(text).items() if not span.container}


def container_spans(text: str) -> dict[str, tuple[int, int]]:
    """Byte spans of every object and array, brackets included. Raises InputError where the text is not JSON."""
    return {pointer: (span.start, span.end) for pointer, span in all_spans(text).items() if span.container}


def all_spans(text: str) -> dict[str, Span]:
    """Byte spans of every value, containers flagged. Raises InputError where the text is not JSON."""
    spans = read_spans(text)
    if text.isascii():
        return spans
    offset = [0, *accumulate(len(char.encode()) for char in text)]
    return {pointer: Span(offset[span.start], offset[span.end], span.container) for pointer, span in spans.items()}
