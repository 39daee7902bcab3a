"""PrefixFiles: full blocks of prompts in a folder, found by later processes by the tokens that led to them.

    key of block i = sha256(key of block i-1, tokens of block i);   key of "before the first" = sha256(identity)
    payload of a block = its tokens [block_size] int64, then its slots of every tensor of the store, as they lie in memory

In: a store, prompts with the blocks that hold them.   Out: the same blocks in another process, bit for bit.
Knows nothing about: models and formats: `identity` names everything that the numbers depend on beside the tokens.
Invariants: a block is only ever filled from a file of its own identity, prefix and tokens, compared as tokens and not only as a hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.kv.folder import BlockFolder
from toolkit.kv.store import Store

Ids = NDArray[np.int64]
_KNOWN = 1 << 16  # keys that are remembered; what was forgotten is written once more


class PrefixFiles:
    """`load` fills blocks, `save` keeps them. Owned by one thread."""

    def __init__(self, path: Path, identity: str, store: Store, *, most_bytes: int) -> None:
        """UsageError where the folder cannot be used."""
        self._store = store
        self._root = sha256(identity.encode()).digest()
        self._tokens_bytes = store.block_size * np.dtype(np.int64).itemsize
        size = self._tokens_bytes + sum(part.nbytes for part in store.slices(0))
        self._folder = BlockFolder(path, size, most_bytes=most_bytes)
        self._kept: set[bytes] = set()  # keys that are known to be in the folder, or to have been there

    @property
    def counts(self) -> Mapping[str, int]:
        """Blocks read, written, refused (damaged or foreign files), evicted, failed (not written)."""
        return self._folder.counts

    def load(self, tokens: Sequence[int], first: int, take: Callable[[], int | None]) -> list[int]:
        """Fill blocks `first`, ... of the prompt from files, as far as there are any; `take` gives a block, None when none is free.

        The last token is never covered: its logits are needed.
        """
        keys: list[bytes] = []
        blocks: list[int] = []
        for i, (key, part) in enumerate(self._chain(tokens[: len(tokens) - 1])):
            keys.append(key)
            if i < first:
                continue
            payload = self._folder.read(key)
            if payload is None or payload[: self._tokens_bytes] != part.tobytes() or (block := take()) is None:
                self._kept.discard(key)
                keys.pop()
                break
            self._fill(block, payload[self._tokens_bytes :])
            self._kept.add(key)
            blocks.append(block)
        if blocks:
            self._folder.touch(keys)
        return blocks

    def save(self, tokens: Sequence[int], blocks: Sequence[int]) -> None:
        """Keep the full blocks that hold `tokens` and are not known to be kept already."""
        chain = list(self._chain(tokens))
        new = {key: self._payload(part, blocks[i]) for i, (key, part) in enumerate(chain) if key not in self._kept}
        if new:
            self._folder.touch(key for key, _ in chain)  # or room for the new ones may be made at the cost of those before them
            kept = self._folder.write(new)
            self._folder.touch(key for key, _ in chain)
            self._kept = kept if len(self._kept) > _KNOWN else self._kept | kept

    def forget(self) -> None:
        """Delete what this process has written."""
        self._folder.forget_mine()
        self._kept.clear()

    def close(self) -> None:
        self._folder.close()

    def _chain(self, tokens: Sequence[int]) -> Iterator[tuple[bytes, Ids]]:
        """Key and tokens of every full block."""
        key, size = self._root, self._store.block_size
        for at in range(0, len(tokens) // size * size, size):
            part = np.array(tokens[at : at + size], dtype=np.int64)
            key = sha256(key + part.tobytes()).digest()
            yield key, part

    def _payload(self, part: Ids, block: int) -> Iterator[bytes]:
        yield part.tobytes()
        for tensor in self._store.slices(block):
            yield tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()

    def _fill(self, block: int, payload: memoryview) -> None:
        at = 0
        for tensor in self._store.slices(block):
            flat = torch.frombuffer(payload, dtype=tensor.dtype, count=tensor.numel(), offset=at)
            tensor.copy_(flat.view(tensor.shape))
            at += tensor.nbytes
