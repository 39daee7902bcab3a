"""Fault: drafted tokens are verified one place too far."""

from __future__ import annotations

from collections.abc import Sequence as Many

from torch import Tensor

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.gate.faults.plant import node_rows
from toolkit.kv.view import Span

NAME = "position off by one"
WHY = "positions of the verify pass count from the wrong token: right alone, wrong behind every draft (vllm#41758: 20 of 20 pairs diverge)"
CATCH = "greedy texts"


def break_(engine: EmbeddedEngine) -> None:
    forward = engine._forward
    hidden, rows = forward._hidden, node_rows(engine)

    def shifted(tokens: Tensor, positions: Tensor, spans: list[Span]) -> Tensor:
        places: Many[int] = rows()
        positions = positions.clone()
        positions[list(places)] += 1
        return hidden(tokens, positions, spans)

    forward._hidden = shifted  # type: ignore[method-assign]
