"""MtpRunner: one head and its cache for all sequences of an engine, in the target's own format: native int8, or torch.

In: tokens, features and places of some rows, and which slots each row sees.   Out: feature rows, logits.
Knows nothing about: trees, what is committed.
Invariants: embeddings and the head's rows are the target's own, taken from it as it runs; a row's result depends on its own line only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from toolkit.draft.contract import Cost
from toolkit.draft.mtp_head import MtpHead
from toolkit.draft.slots import RowLists, Slots
from toolkit.kv.blocks import BlockPool
from toolkit.kv.store import KVStore
from toolkit.kv.table import BlockTable
from toolkit.model.decoder import Decoder
from toolkit.model.native.decoder import NativeDecoder, linear
from toolkit.model.native.pack import pack

BLOCK = 16  # slots of a block


class MtpRunner:
    """`tokens` is the room for all sequences together. ids[i] is the target's token of row i of the draft vocabulary."""

    def __init__(self, head: MtpHead, target: Decoder | NativeDecoder, tokens: int) -> None:
        self._target, self._head = target, head
        self.ids: list[int] = head.ids.tolist()
        self._ids = head.ids
        self.context = target.config.context
        layer = head.decoder(target.head_rows(head.ids))
        self._layer = NativeDecoder(layer) if isinstance(target, NativeDecoder) else layer
        self._fc = pack(head.fc, head.fc_bias) if isinstance(target, NativeDecoder) else None
        self.pool = BlockPool(-(-tokens // BLOCK))
        config = head.config
        self.store = KVStore(
            layers=1, kv_heads=config.kv_heads, head_dim=config.head_dim, blocks=self.pool.size, block_size=BLOCK,
            dtype=target.dtype, device=target.device,
        )  # fmt: skip
        block = head.block
        matrices = (head.fc, *(each.weight for each in (block.qkv, block.o, block.gate_up, block.down, layer.head)))
        weights = sum(matrix.numel() for matrix in matrices)
        self.cost = Cost(weights, weights * (1 if isinstance(target, NativeDecoder) else target.dtype.itemsize))

    def table(self) -> BlockTable:
        """An empty table over the pool."""
        return BlockTable(self.pool, BLOCK)

    def room(self, table: BlockTable, count: int) -> Slots:
        """Slots for `count` more rows of a table. EngineError where the pool has no block left."""
        length = table.length
        table.append(count)
        return np.array(table.slots(length, length + count), np.int32)

    def rows(self, tokens: Sequence[int], features: Tensor, places: Sequence[int], view: RowLists) -> Tensor:
        """Feature rows [T, D] of tokens p+1 and features [T, D] of tokens p at places p."""
        ids = torch.tensor(tokens, dtype=torch.long, device=self._target.device)
        at = torch.tensor(places, dtype=torch.long, device=self._target.device)
        joined = self._head.joined(self._target.embed(ids), features)
        blank = torch.zeros_like(ids)  # the layer starts from rows
        if isinstance(self._layer, NativeDecoder):
            assert self._fc is not None
            x = linear(self._fc, joined, self._layer.kernel_set)
            return self._layer.features(blank, at, view, (), x)[0]
        x = F.linear(joined, self._head.fc, self._head.fc_bias)
        return self._layer.features(blank, at, view, (), x)[0]

    def logits(self, rows: Tensor) -> Tensor:
        """[n, Vd] over the draft vocabulary, of feature rows [n, D]."""
        return self._layer.logits(rows)

    def widened(self, logits: Tensor, vocab_size: int) -> Tensor:
        """[n, V] over the target's vocabulary: -inf for what is not in the draft vocabulary."""
        wide = logits.new_full((len(logits), vocab_size), -torch.inf)
        wide[:, self._ids.to(logits.device)] = logits
        return wide
