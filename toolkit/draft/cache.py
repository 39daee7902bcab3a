"""DraftCache: a draft model and the KV blocks of all sequences that it drafts for; one pass over some lines.

In: lines, each a block table and the tokens that follow in it.   Out: logits [n, V] behind the last token of every line.
Knows nothing about: trees, what is committed.
Invariants: a pass that fails leaves every table as it was. V is the target's vocabulary: a draft model with fewer rows never
guesses what it lacks, further rows (padding) are never seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from toolkit.kv.blocks import BlockPool
from toolkit.kv.slots import SlotView
from toolkit.kv.store import KVStore
from toolkit.kv.table import BlockTable
from toolkit.kv.view import PagedView, Span
from toolkit.model.decoder import Decoder
from toolkit.model.native.decoder import NativeDecoder

BLOCK = 16  # tokens of a block


class DraftCache:
    """`tokens` is the room for all lines together; memory is used only where something was written."""

    def __init__(self, decoder: Decoder | NativeDecoder, vocab_size: int, tokens: int) -> None:
        config = decoder.config
        self.decoder = decoder
        self.vocab_size = vocab_size
        self.context = config.context
        self.pool = BlockPool(-(-tokens // BLOCK))
        self._store = KVStore(
            layers=config.layers, kv_heads=config.kv_heads, head_dim=config.head_dim, blocks=self.pool.size, block_size=BLOCK,
            dtype=decoder.dtype, device=decoder.device,
        )  # fmt: skip

    def table(self) -> BlockTable:
        """An empty table over the pool."""
        return BlockTable(self.pool, BLOCK)

    def run(self, lines: Sequence[tuple[BlockTable, Sequence[int]]]) -> Tensor:
        """Compute tokens behind their tables, which then hold them. EngineError where the pool has no block left."""
        before = [table.length for table, _ in lines]
        try:
            return self._run(lines, before)
        except BaseException:
            for (table, _), length in zip(lines, before, strict=True):
                table.truncate(min(length, table.length))
            raise

    def _run(self, lines: Sequence[tuple[BlockTable, Sequence[int]]], before: Sequence[int]) -> Tensor:
        for table, tokens in lines:
            self._store.copy(table.append(len(tokens)))
        ids = self._ids([token for _, tokens in lines for token in tokens])
        places = self._ids(
            [at for start, (_, tokens) in zip(before, lines, strict=True) for at in range(start, start + len(tokens))]
        )
        spans = [Span(table, len(tokens)) for table, tokens in lines]
        if isinstance(self.decoder, NativeDecoder):
            hidden = self.decoder.forward(ids, places, SlotView(self._store, spans))
        else:
            hidden = self.decoder.forward(ids, places, PagedView(self._store, spans))
        ends = self._ids([len(tokens) for _, tokens in lines]).cumsum(0) - 1
        logits = self.decoder.logits(hidden[ends])[:, : self.vocab_size]
        return F.pad(logits, (0, self.vocab_size - logits.shape[1]), value=-torch.inf)

    def _ids(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.decoder.device)
