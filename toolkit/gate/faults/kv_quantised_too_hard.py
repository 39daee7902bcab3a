"""Fault: keys and values are kept in one bit a number."""

from __future__ import annotations

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.kv.quantised import QuantisedStore

NAME = "kv quantised too hard"
WHY = "a cache of fewer bits than the model bears: short prompts look fine, long ones do not (vllm#53180, k8v4: every health signal stays green)"
CATCH = "greedy texts"


def break_(engine: EmbeddedEngine) -> None:
    forward = engine._forward
    config = forward.decoder.config
    forward.prefix.clear()
    forward.store = QuantisedStore(
        layers=config.layers, kv_heads=config.kv_heads, head_dim=config.head_dim, blocks=forward.pool.size,
        block_size=forward.block_size, dtype=forward.decoder.dtype, device=forward.device, bits=1,
    )  # fmt: skip
