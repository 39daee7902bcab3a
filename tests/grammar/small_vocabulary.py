"""A vocabulary small enough to think through: bytes, a few longer tokens, two control tokens, one id that stands for nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from toolkit.contracts import Mask, Message
from toolkit.grammar.mask import unpack

LONGER = (b"ab", b"abc", b"ba", b'{"', b'":', b"New", b" York", "é".encode(), b"tru")


class SmallTokenizer:
    """Greedy longest match. Ids 0-255 bytes, then LONGER, then <end> <start>, then a padding id."""

    def __init__(self) -> None:
        self._table = [bytes([byte]) for byte in range(256)] + list(LONGER) + [b"", b"", b""]
        self.vocab_size = len(self._table)
        end = 256 + len(LONGER)
        self.eos_ids = (end,)
        self.control_ids = frozenset((end, end + 1, end + 2))
        self.fingerprint = "small-vocabulary-of-the-tests"

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        rest, ids = text.encode(), list[int]()
        while rest:
            best = max((token for token in self._table if token and rest.startswith(token)), key=len)
            ids.append(self._table.index(best))
            rest = rest[len(best) :]
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        return self._table[token_id]

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode(errors="replace")

    def chat(self, messages: Sequence[Message], *, generate: bool = True) -> list[int]:
        raise NotImplementedError


def allowed_ids(mask: Mask, row: int) -> list[int]:
    """The tokens that a row of a mask allows, ascending."""
    bits: list[int] = np.flatnonzero(unpack(mask[row : row + 1], mask.shape[1] * 32)[0]).tolist()
    return bits
