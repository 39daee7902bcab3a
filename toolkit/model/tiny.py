"""Tiny model: a random decoder of a few thousand weights, for tests and for trying things without a download.

In: a seed and a shape.   Out: a Decoder whose greedy text is not degenerate.
Knows nothing about: tokenizers; the default vocabulary fits the byte tokenizer.
Invariants: the same arguments give the same weights.
Source: own; the scales keep residual rows near unit size and logits a few nats apart.
"""

from __future__ import annotations

import torch
from torch import Tensor

from toolkit.model.config import ModelConfig
from toolkit.model.decoder import Decoder
from toolkit.model.layout import shape_of
from toolkit.model.weights import build

BYTE_VOCABULARY = 261  # 256 bytes and five control tokens


def tiny_model(
    seed: int = 0, *, vocab_size: int = BYTE_VOCABULARY, hidden_size: int = 32, layers: int = 2, heads: int = 4,
    kv_heads: int = 2, context: int = 4096, sharpness: float = 3.0, dtype: torch.dtype = torch.float32,
) -> Decoder:  # fmt: skip
    """A random Llama-shaped decoder on the CPU; `sharpness` is the spread of its logits in nats."""
    config = ModelConfig(
        architecture="llama", hidden_size=hidden_size, layers=layers, heads=heads, kv_heads=kv_heads,
        head_dim=hidden_size // heads, intermediate=2 * hidden_size, vocab_size=vocab_size, context=context,
        rope_theta=10000.0, rms_eps=1e-5, tied=False,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    shapes = shape_of(config)

    def take(name: str) -> Tensor:
        shape = shapes[name]
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=dtype)
        spread = 1.0 if "embed" in name else shape[-1] ** -0.5 * (sharpness if "lm_head" in name else 1.0)
        return (torch.randn(shape, generator=generator) * spread).to(dtype)

    return build(config, take)
