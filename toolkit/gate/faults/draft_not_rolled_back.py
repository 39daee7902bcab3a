"""Fault: the keys and values of a refused draft stay where those of the token that came instead belong."""

from __future__ import annotations

from collections.abc import Sequence as Many
from weakref import WeakKeyDictionary

from torch import Tensor

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.forward import Feed
from toolkit.engine.sequence import Sequence
from toolkit.gate.faults.plant import float_store

NAME = "draft not rolled back"
WHY = "rejected drafts stay in the cache and everything after them is read through them (vllm#36872: acceptance 61 % -> 0.9 %; mlx-lm#1423)"
CATCH = "greedy texts"


def break_(engine: EmbeddedEngine) -> None:
    forward, store = engine._forward, float_store(engine)
    run = forward._run
    reached: WeakKeyDictionary[Sequence, int] = WeakKeyDictionary()  # tokens that the last pass computed, nodes included

    def stale(feeds: Many[Feed]) -> list[Tensor]:
        kept = []
        for feed in feeds:
            table, at = feed.sequence.table, feed.sequence.computed
            if at < reached.get(feed.sequence, 0) and at % table.block_size:
                slot = table.slots(at - 1, at)[0] + 1
                kept.append((slot, store.keys[:, :, slot].clone(), store.values[:, :, slot].clone()))
        found = run(feeds)
        for slot, keys, values in kept:
            store.keys[:, :, slot], store.values[:, :, slot] = keys, values
        for feed in feeds:
            reached[feed.sequence] = feed.sequence.table.length
        return found

    forward._run = stale  # type: ignore[method-assign]
