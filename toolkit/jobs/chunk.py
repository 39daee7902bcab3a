"""Chunk: a long text in pieces that fit a prompt, cut between tokens, with an overlap.

In: a text, a tokenizer, tokens a piece, tokens of overlap.   Out: pieces with the characters [start, end) they are.
Knows nothing about: records, prompts.
Invariants: text[start:end] is the piece; the first begins at 0, the last ends at the end, each begins inside or right behind the one
before it and ends behind its end; no character is cut (where a token ends inside one, the cut moves to the character's begin). A text of at most
`size` tokens is one piece.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

from toolkit.contracts import Tokenizer
from toolkit.errors import InputError


@dataclass(frozen=True, slots=True)
class Chunk:
    """Characters [start, end) of a text, and how many tokens they were cut to."""

    start: int
    end: int
    tokens: int


def chunks_of(text: str, tokenizer: Tokenizer, *, size: int, overlap: int) -> list[Chunk]:
    """At least one piece of at most `size` tokens (as counted in the whole text); 0 <= overlap < size.

    InputError where the tokenizer's tokens do not spell the text: then there is no telling where its characters are.
    """
    ids = tokenizer.encode(text)
    if len(ids) <= size:
        return [Chunk(0, len(text), len(ids))]
    edges = _edges(text, ids, tokenizer)
    found: list[Chunk] = []
    for first in range(0, len(ids), size - overlap):
        last = min(first + size, len(ids))
        start, end = edges[first], edges[last]
        if end > (found[-1].end if found else 0):
            found.append(Chunk(start, end, last - first))
        if last == len(ids):
            break
    return found


def _edges(text: str, ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """Characters of the text before each token, and all of them behind the last."""
    sizes = [0, *accumulate(len(tokenizer.token_bytes(each)) for each in ids)]
    if sizes[-1] != len(text.encode()):
        raise InputError(
            f"the tokens of the text stand for {sizes[-1]} bytes, the text has {len(text.encode())}: it cannot be cut between tokens",
            hint="leave out chunk_tokens, or use a model whose tokenizer keeps texts as they are",
        )
    if text.isascii():
        return sizes
    begins = [0, *accumulate(len(char.encode()) for char in text)]  # byte at which each character begins
    return [bisect_right(begins, size) - 1 for size in sizes]
