"""Decoder: a dense Llama-like transformer in plain torch, for ragged rows.

In: token ids and positions, both [T] int64, of any number of sequences.   Out: hidden rows [T, D], logits [R, V] float32.
Knows nothing about: which row belongs to which sequence (its KVView knows), sampling, files.
Invariants: no state between calls; weights are never written; a row depends on other rows only through the KVView.
Source: Llama (2302.13971), rotary embedding in its rotate-half form (2104.09864), Llama 3 frequency rescaling as in the
released checkpoints, query/key norms of Qwen3; departures: q, k, v and gate, up are one product each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from toolkit.contracts import require
from toolkit.errors import UsageError
from toolkit.model.attention import KVView
from toolkit.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Linear:
    """weight [out, in] and optional bias [out]: x [T, in] -> [T, out]."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Block:
    """Weights of one layer. qkv [(H + 2 Hkv) Dh, D], o [D, H Dh], gate_up [2 F, D], down [D, F]; norms [D] and [Dh], None = none."""

    attention_norm: Tensor | None
    qkv: Linear
    o: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None


class Decoder:
    """Weights and the forward pass. `embedding` [V, D], `norm` [D] or None, `head` [V, D]: the embedding itself where tied."""

    def __init__(
        self, config: ModelConfig, embedding: Tensor, blocks: tuple[Block, ...], norm: Tensor | None, head: Tensor
    ) -> None:
        self.config = config
        self.embedding = embedding
        self.blocks = blocks
        self.norm = norm
        self.head = Linear(head)
        self._frequencies = rope_frequencies(config).to(embedding.device)

    def first(self, layers: int) -> Decoder:
        """The decoder of the first `layers` layers with this one's final norm and head; no weight is copied."""
        require(1 <= layers <= self.config.layers, "layers", layers, f"an integer from 1 to {self.config.layers}")
        config = replace(self.config, layers=layers)
        return Decoder(config, self.embedding, self.blocks[:layers], self.norm, self.head.weight)

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @torch.no_grad()  # not inference_mode: heads are trained on these outputs
    def forward(self, tokens: Tensor, positions: Tensor, kv: KVView) -> Tensor:
        """Hidden rows [T, D] after the final norm, of tokens [T] int64 at positions [T] int64."""
        return self.features(tokens, positions, kv, ())[0]

    @torch.no_grad()
    def features(
        self, tokens: Tensor, positions: Tensor, kv: KVView, depths: Sequence[int], inputs: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`forward`, and the residual rows [len(depths), T, D] before each of the layers `depths`.

        inputs [T, D] are the rows to start from; None takes the embeddings of the tokens.
        """
        x = self.embed(tokens) if inputs is None else inputs.clone()
        cos, sin = self._rotation(positions)
        wanted = check_depths(depths, self.config)
        residuals = x.new_empty(len(wanted), *x.shape)
        for layer, block in enumerate(self.blocks):
            for place in np.flatnonzero(wanted == layer):
                residuals[place] = x
            x += self._attention(layer, block, self._rms(x, block.attention_norm), cos, sin, kv)
            gate, up = block.gate_up(self._rms(x, block.mlp_norm)).chunk(2, dim=-1)
            x += block.down(F.silu(gate).mul_(up))
        return self._rms(x, self.norm), residuals

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings [T, D] of tokens [T] int64."""
        return F.embedding(tokens, self.embedding)

    def head_rows(self, ids: Tensor) -> Tensor:
        """Rows [n, D] of the head for tokens [n] int64."""
        return self.head.weight[ids.to(self.device)]

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """[R, V] float32 of hidden rows [R, D]."""
        return self.head(hidden).float()

    def _rms(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return x if weight is None else F.rms_norm(x, (weight.shape[0],), weight, self.config.rms_eps)

    def _attention(self, layer: int, block: Block, x: Tensor, cos: Tensor, sin: Tensor, kv: KVView) -> Tensor:
        shape = self.config
        rows, rotated = x.shape[0], shape.heads + shape.kv_heads
        qkv = block.qkv(x).view(rows, rotated + shape.kv_heads, shape.head_dim)
        qk, v = qkv[:, :rotated], qkv[:, rotated:]
        if block.q_norm is not None and block.k_norm is not None:
            qk = torch.cat((self._rms(qk[:, : shape.heads], block.q_norm), self._rms(qk[:, shape.heads :], block.k_norm)), 1)
        half = shape.head_dim // 2
        swapped = torch.cat((qk[..., half:], qk[..., :half]), dim=-1)
        qk = torch.addcmul(qk * cos, swapped, sin)
        return block.o(kv.attend(layer, qk[:, : shape.heads], qk[:, shape.heads :], v).reshape(rows, -1))

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [T, 1, Dh] of the rotation; sin carries the minus sign of the first half. Angles are float32."""
        angles = positions.to(torch.float32)[:, None] * self._frequencies  # [T, Dh / 2]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((cos, cos), -1)[:, None].to(self.dtype), torch.cat((-sin, sin), -1)[:, None].to(self.dtype)


def check_depths(depths: Sequence[int], config: ModelConfig) -> NDArray[np.int64]:
    """`depths` as an array. UsageError unless they are distinct layers of the model in rising order."""
    wanted: NDArray[np.int64] = np.array(depths, np.int64).reshape(-1)
    if len(wanted) and not (wanted[0] >= 0 and wanted[-1] < config.layers and bool((np.diff(wanted) > 0).all())):
        raise UsageError(f"depths = {list(depths)} is not allowed: rising layer numbers from 0 to {config.layers - 1}")
    return wanted


def rope_frequencies(config: ModelConfig) -> Tensor:
    """Radians a position of every pair of dimensions, [Dh / 2] float32."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).to(torch.float32) / config.head_dim
    base = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if scaling is None:
        return base
    wavelength = 2 * math.pi / base
    turns = scaling.original_context / wavelength  # full turns over the original context
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)  # 0: slow (scaled), 1: fast (kept)
    return (1 - blend) * base / scaling.factor + blend * base
