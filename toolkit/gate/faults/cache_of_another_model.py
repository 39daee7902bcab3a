"""Fault: what the prefix cache gives was computed by another model."""

from __future__ import annotations

import torch

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.sequence import Sequence
from toolkit.kv.view import PagedView, Span
from toolkit.model.tiny import tiny_model

NAME = "cache of another model"
WHY = "a cache keyed by tokens alone survives a change of weights (trainers that update a server's weights and do not flush its cache)"
CATCH = "canaries"


def break_(engine: EmbeddedEngine) -> None:
    forward, other = engine._forward, tiny_model(1)
    find = forward.find_prefix

    def foreign(sequence: Sequence) -> int:
        found = find(sequence)
        if found:
            ids, places = torch.tensor(sequence.tokens[:found]), torch.arange(found)
            other.forward(ids, places, PagedView(forward.store, [Span(sequence.table, found)]))
        return found

    forward.find_prefix = foreign  # type: ignore[method-assign]
