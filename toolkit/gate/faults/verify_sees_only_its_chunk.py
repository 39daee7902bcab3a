"""Fault: the pass that verifies drafts attends to its own rows and to nothing that is cached."""

from __future__ import annotations

import torch
from torch import Tensor

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.gate.faults.plant import node_rows
from toolkit.kv.view import PagedView, Span

NAME = "verify sees only its chunk"
WHY = "TurboQuant KV with MTP3: the verify batch was routed to a prefill kernel that ignored the cache, and stayed fast (vllm#40880, PR#40914)"
CATCH = "greedy texts"


def break_(engine: EmbeddedEngine) -> None:
    forward = engine._forward
    rows = node_rows(engine)

    def blind(tokens: Tensor, positions: Tensor, spans: list[Span]) -> Tensor:
        nodes, view, first = set(rows()), PagedView(forward.store, spans), 0
        for span in spans:
            mine = range(first, first + span.count)
            if view._own is not None and first in view._place and nodes.intersection(mine):
                places = [view._place[row] for row in mine]
                before = int((view._own.bias[places[0], 0] == 0).sum()) - 1
                view._own.bias[places, 0, :before] = -torch.inf
            first += span.count
        return forward.decoder.forward(tokens, positions, view)  # type: ignore[arg-type]

    forward._hidden = blind  # type: ignore[method-assign]
