"""Forward: one pass of the model over the pending tokens of many sequences. The only place that builds model inputs.

In: feeds, each some pending tokens of one sequence, how many of their rows want logits, and perhaps a draft tree behind them.
Out: per feed logits [rows + N, V] float32, V cut to the tokenizer's vocabulary (padding columns are never seen by anyone).
Knows nothing about: requests, grammars, samplers.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from toolkit.draft.tree import EMPTY, DraftTree
from toolkit.engine.sequence import Sequence
from toolkit.errors import EngineError, UnsupportedError, UsageError
from toolkit.kv.blocks import BlockPool
from toolkit.kv.files import PrefixFiles
from toolkit.kv.prefix import PrefixCache
from toolkit.kv.quantised import QuantisedStore
from toolkit.kv.slots import SlotView
from toolkit.kv.store import KVStore
from toolkit.kv.table import BlockTable
from toolkit.kv.view import PagedView, Span
from toolkit.model.decoder import Decoder
from toolkit.model.native.decoder import NativeDecoder

KV_DTYPES = ("auto", "q4")  # as the decoder computes, or 4 bits a number (kv/quantised.py)


@dataclass(frozen=True, slots=True)
class Feed:
    """The next `count` pending tokens of a sequence; logits are wanted of the last `rows` of them and of all nodes of the tree.

    A tree stands behind the last pending token. `hidden` takes the hidden rows [count + N, D] where they are wanted.
    """

    sequence: Sequence
    count: int
    rows: int
    tree: DraftTree = EMPTY
    hidden: list[Tensor] | None = None

    @property
    def size(self) -> int:
        """Rows that it adds to the pass."""
        return self.count + len(self.tree)


class Forward:
    """Model, KV tensors, blocks and prefix cache of one engine."""

    def __init__(
        self,
        decoder: Decoder | NativeDecoder,
        *,
        vocab_size: int,
        kv_blocks: int,
        block_size: int,
        device: torch.device,
        prefix_cache: bool = True,
        kv_dtype: str = "auto",
    ) -> None:
        """kv_dtype: a name of KV_DTYPES. UnsupportedError where the decoder reads the cache by itself."""
        config = decoder.config
        self.decoder = decoder
        self.vocab_size = vocab_size
        self.block_size = block_size
        self.device = device
        self.pool = BlockPool(kv_blocks)
        self.prefix = PrefixCache(self.pool, block_size)
        self.prefix_enabled = prefix_cache
        self.files: PrefixFiles | None = None  # what outlives the process; used only where the prefix cache is
        self._unsaved: list[tuple[list[int], list[int]]] = []
        self.store: KVStore | QuantisedStore = _store_kind(kv_dtype, decoder)(
            layers=config.layers,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            blocks=kv_blocks,
            block_size=block_size,
            dtype=decoder.dtype,
            device=device,
        )

    def table(self) -> BlockTable:
        return BlockTable(self.pool, self.block_size)

    def find_prefix(self, sequence: Sequence) -> int:
        """Let a sequence that has nothing computed start from cached blocks; returns the tokens found."""
        if self.prefix_enabled and sequence.table.length == 0 and not sequence.is_wary:
            sequence.table.adopt(self.prefix.match(sequence.tokens))
            if self.files is not None:
                restored = self.files.load(sequence.tokens, len(sequence.table.blocks), self._take)
                sequence.table.extend(restored)
                sequence.restored = len(restored) * self.block_size
        return sequence.table.length

    def keep_prefix(self, sequence: Sequence) -> None:
        """Remember the full blocks that are computed so far; those of a prompt also for `save_prefixes`."""
        if self.prefix_enabled:
            self.prefix.insert(sequence.tokens[: sequence.computed], sequence.table.blocks)
            if self.files is not None and sequence.max_rollback == 0:
                self._unsaved.append((sequence.tokens[: sequence.computed], list(sequence.table.blocks)))

    def save_prefixes(self) -> None:
        """Write what is to outlive the process. To be called before the next pass: until then nobody writes to those blocks."""
        if self.files is not None:
            for tokens, blocks in self._unsaved:
                self.files.save(tokens, blocks)
            self._unsaved.clear()

    def forget_prefixes(self) -> None:
        """Empty the prefix cache, delete what this process wrote of it; what running sequences hold of it stays theirs."""
        self.prefix.clear()
        self._unsaved.clear()
        if self.files is not None:
            self.files.forget()

    def __call__(self, feeds: Many[Feed]) -> list[Tensor]:
        """Run one pass; afterwards the fed tokens are part of their sequences' caches. A pass that fails leaves them pending."""
        before = [feed.sequence.table.length for feed in feeds]
        try:
            return self._run(feeds)
        except BaseException:
            for feed, length in zip(feeds, before, strict=True):
                feed.sequence.table.truncate(length)
            raise

    def _run(self, feeds: Many[Feed]) -> list[Tensor]:
        tokens: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        spans: list[Span] = []
        for feed in feeds:
            spans.append(self._span(feed))
            end = len(tokens) + feed.count
            wanted += range(end - feed.rows, end + len(feed.tree))
            at = feed.sequence.table.length - feed.size
            tokens += [*feed.sequence.tokens[at : at + feed.count], *feed.tree.tokens]
            positions += range(at, at + feed.count)
            positions += [at + feed.count + len(path) - 1 for path in feed.tree.paths]
        hidden = self._hidden(self._ids(tokens), self._ids(positions), spans)
        rows = hidden if len(wanted) == len(tokens) else hidden[self._ids(wanted)]
        logits = self.decoder.logits(rows)
        if logits.shape[1] > self.vocab_size:
            logits = logits[:, : self.vocab_size]
        answers: list[Tensor] = []
        at = told = 0
        for feed in feeds:
            nodes = len(feed.tree)
            feed.sequence.nodes = nodes
            if feed.hidden is not None:
                feed.hidden.append(hidden[at : at + feed.count + nodes])
            answers.append(logits[told : told + feed.rows + nodes])
            at, told = at + feed.count + nodes, told + feed.rows + nodes
        return answers

    def _take(self) -> int | None:
        """A block for what is read from files, None where all are in use."""
        return self.pool.take() if self.pool.free or self.prefix.evict(1) else None

    def _span(self, feed: Feed) -> Span:
        """Make room for a feed in its table, what is shared copied first."""
        table = feed.sequence.table
        if feed.sequence.nodes:
            raise EngineError("a sequence takes part in a pass only after its draft tree was settled")
        shortage = table.needs(feed.size) - self.pool.free
        if shortage > 0:
            self.prefix.evict(shortage)
        self.store.copy(table.append(feed.size))
        return Span(table, feed.size, () if feed.tree.is_chain else feed.tree.paths)

    def _hidden(self, tokens: Tensor, positions: Tensor, spans: list[Span]) -> Tensor:
        """Hidden rows [T, D]; each decoder reads the cache through the view it knows."""
        if isinstance(self.decoder, NativeDecoder):
            assert isinstance(self.store, KVStore)
            return self.decoder.forward(tokens, positions, SlotView(self.store, spans))
        return self.decoder.forward(tokens, positions, PagedView(self.store, spans))

    def _ids(self, values: list[int]) -> Tensor:
        return torch.from_numpy(np.array(values, np.int64)).to(self.device)


def _store_kind(kv_dtype: str, decoder: Decoder | NativeDecoder) -> type[KVStore | QuantisedStore]:
    if kv_dtype not in KV_DTYPES:
        raise UsageError(f"kv_dtype = {kv_dtype!r} is not allowed: {', '.join(KV_DTYPES)}")
    if kv_dtype == "auto":
        return KVStore
    if isinstance(decoder, NativeDecoder):
        raise UnsupportedError(
            'kv_dtype="q4" runs in torch only: the native int8 kernels read float32 keys', hint='format="float32"'
        )
    return QuantisedStore
