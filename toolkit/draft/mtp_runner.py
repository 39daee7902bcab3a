"""MtpRunner: one head and its cache for all sequences of an engine, in the target's own format: native int8, or torch.

In: tokens, features and places of some rows, and which slots each row sees.   Out: feature rows, logits.
Knows nothing about: trees, what is committed.
Invariants: embeddings and the head's rows are the target's own, taken from it as it runs; a row's result depends on its own line only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from toolkit.draft.contract import Cost
from toolkit.draft.grow import Guesses, likeliest
from toolkit.draft.mtp_head import MtpHead
from toolkit.draft.slots import RowLists, SlotLine
from toolkit.kv.blocks import BlockPool
from toolkit.kv.store import KVStore
from toolkit.model.decoder import Decoder
from toolkit.model.native.decoder import NativeDecoder
from toolkit.model.native.guesser import GuessPlan, NativeGuesser
from toolkit.model.native.pack import pack
from toolkit.model.native.packed import PackedEntry, floats

BLOCK = 16  # slots of a block


class MtpRunner:
    """`tokens` is the room for all sequences together. ids[i] is the target's token of row i of the draft vocabulary."""

    def __init__(self, head: MtpHead, target: Decoder | NativeDecoder, tokens: int) -> None:
        self._target, self._head = target, head
        self.ids: list[int] = head.ids.tolist()
        self._ids = head.ids.contiguous()
        self.context = target.config.context
        layer = head.decoder(target.head_rows(head.ids))
        self._layer = NativeGuesser(layer, _entry(head, target), self._ids) if isinstance(target, NativeDecoder) else layer
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

    def line(self) -> SlotLine:
        """An empty line over the pool."""
        return SlotLine(self.pool, BLOCK)

    def rows(self, tokens: Sequence[int], features: Tensor, places: Sequence[int], view: RowLists) -> Tensor:
        """Feature rows [T, D] of tokens p+1 and features [T, D] of tokens p at places p."""
        ids = torch.tensor(tokens, dtype=torch.long, device=self._target.device)
        at = torch.tensor(places, dtype=torch.long, device=self._target.device)
        if isinstance(self._layer, NativeGuesser):
            return self._layer.features(ids, at, view, (), features)[0]
        x = self._head.enter(self._target.embed(ids), features)
        return self._layer.features(torch.zeros_like(ids), at, view, (), x)[0]  # the layer starts from rows

    def extend(self, line: SlotLine, tokens: Sequence[int], features: Tensor, place: int) -> Tensor:
        """`rows` from `place` on, which become part of the line; the feature [D] of the last."""
        line.reach(len(tokens))
        line.end += len(tokens)
        return self.rows(tokens, features, range(place, place + len(tokens)), line.rows(self.store, len(tokens)))[-1]

    def guesses(
        self, line: SlotLine, tokens: Sequence[int], features: Tensor, place: int, plan: GuessPlan
    ) -> tuple[Tensor, list[Guesses]]:
        """`extend`, and guesses behind the last row, each but the last followed by the next."""
        if not isinstance(self._layer, NativeGuesser):
            feature = self.extend(line, tokens, features, place)
            return feature, self.guesses_behind(line, feature, place + len(tokens) - 1, plan)
        line.reach(len(tokens) + plan.most - 1)
        line.end += len(tokens)
        cache = self.store.keys, self.store.values
        rows, guesses = self._layer.guesses(tokens, place, cache, line.slots, line.end, features, plan)
        return rows[-1], guesses

    def guesses_behind(self, line: SlotLine, feature: Tensor, place: int, plan: GuessPlan) -> list[Guesses]:
        """Guesses behind a feature [D] at a place, the last of a line; call by call. The line stays as it is."""
        found: list[Guesses] = []
        joint, end = 0.0, line.end
        try:
            while True:
                (guesses,) = self.likeliest(feature[None], plan.count, plan.temperature)
                found.append(guesses)
                joint += guesses[0][1]
                if len(found) == plan.most or joint < plan.least:
                    return found
                place += 1
                feature = self.extend(line, [self.ids[guesses[0][0]]], feature[None], place)
        finally:
            line.end = end

    def logits(self, rows: Tensor) -> Tensor:
        """[n, Vd] over the draft vocabulary, of feature rows [n, D]."""
        return self._layer.logits(rows)

    def likeliest(self, rows: Tensor, count: int, temperature: float) -> list[Guesses]:
        """The `count` likeliest guesses over the draft vocabulary, of feature rows [n, D]."""
        if isinstance(self._layer, NativeGuesser):
            return self._layer.likeliest(rows, count, temperature)
        return likeliest(self.logits(rows), count, temperature)

    def widened(self, logits: Tensor, vocab_size: int) -> Tensor:
        """[n, V] over the target's vocabulary: -inf for what is not in the draft vocabulary."""
        wide = logits.new_full((len(logits), vocab_size), -torch.inf)
        wide[:, self._ids.to(logits.device)] = logits
        return wide


def _entry(head: MtpHead, target: NativeDecoder) -> PackedEntry:
    return PackedEntry(pack(head.fc, head.fc_bias), target.packed.embedding, floats(head.embed_norm), floats(head.hidden_norm))
