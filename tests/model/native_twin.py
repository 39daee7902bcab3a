"""The native pass again, slowly: numpy, one row and one head at a time, the same roundings in the same order, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.model.config import ModelConfig
from toolkit.model.decoder import Block, Decoder, Linear, rope_frequencies
from toolkit.model.layout import shape_of
from toolkit.model.weights import build

Floats = NDArray[np.float32]
F = np.float32
LOG2E, LN2_HIGH, LN2_LOW = F(1.44269504), F(0.693359375), F(-2.12194440e-4)
POLYNOMIAL = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


def random_decoder(seed: int = 0, **changes: Any) -> Decoder:
    """A random decoder on the CPU, norms and biases off their neutral values."""
    shape: dict[str, Any] = {
        "architecture": "llama", "hidden_size": 48, "layers": 2, "heads": 6, "kv_heads": 2, "head_dim": 8, "intermediate": 80,
        "vocab_size": 97, "context": 128, "rope_theta": 10000.0, "rms_eps": 1e-5,
    }  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    config = ModelConfig(**shape | changes)
    shapes = shape_of(config)

    def take(name: str) -> torch.Tensor:
        values = torch.randn(shapes[name], generator=generator) * (0.3 if len(shapes[name]) > 1 else 0.2)
        return values + 1 if "norm" in name else values

    return build(config, take)


def total(lanes: Floats) -> Floats:
    """Sum over the last axis of eight lanes, in the order of the kernels."""
    v = [lanes[..., i] for i in range(8)]
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))


def folded(products: Floats) -> Floats:
    """Sum over the last axis: element i goes to lane i % 8, lanes in order."""
    lanes = np.zeros((*products.shape[:-1], 8), F)
    for start in range(0, products.shape[-1], 8):
        lanes = lanes + products[..., start : start + 8]
    return total(lanes)


def exponential(x: Floats) -> Floats:
    x = np.clip(x, F(-87), F(88))
    n = np.rint(x * LOG2E)
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    y = np.full_like(x, F(POLYNOMIAL[0]))
    for c in POLYNOMIAL[1:]:
        y = y * r + F(c)
    return np.ldexp(y * (r * r) + r + F(1), n.astype(np.int32)).astype(F)


def norm(x: Floats, weight: Floats, epsilon: float) -> Floats:
    return x * (F(1) / np.sqrt(folded(x * x) / F(len(x)) + F(epsilon))) * weight


def quantise(x: Floats) -> tuple[NDArray[np.int64], np.float32]:
    largest = np.abs(x).max()
    if largest < F(1e-30):
        return np.zeros(len(x), np.int64), F(0)
    return np.rint(x * (F(8191) / largest)).astype(np.int64), largest / F(8191)


def weights(weight: Floats) -> tuple[NDArray[np.int64], Floats]:
    scale = np.abs(weight).max(1) / F(127)
    return np.rint(weight / np.where(scale > 0, scale, F(1))[:, None]).astype(np.int64), scale


def weights4(weight: Floats) -> tuple[NDArray[np.int64], Floats, Floats, Floats]:
    """W [N, K / 32, 32], steps and offsets [N, K / 32] that are halves, scale [N]."""
    scale = np.ldexp(np.ones(len(weight), F), np.frexp(np.abs(weight).max(1))[1] - 1)
    spans = (weight / scale[:, None]).reshape(len(weight), -1, 32)
    step = ((spans.max(2) - spans.min(2)) / F(15)).astype(np.float16).astype(F)
    offset = spans.min(2).astype(np.float16).astype(F)
    W = np.rint((spans - offset[..., None]) / np.where(step > 0, step, F(1))[..., None]).clip(0, 15)
    return W.astype(np.int64), step, offset, scale


def meant(weight: Floats, bits: int) -> Floats:
    """What the packed form of a matrix stands for."""
    if bits == 8:
        W, scale = weights(weight)
        return W * scale[:, None]
    W, step, offset, scale = weights4(weight)
    return (step[..., None] * W + offset[..., None]).reshape(weight.shape) * scale[:, None]


def product(x: Floats, linear: Linear, bits: int = 8) -> Floats:
    X, xs = quantise(x)
    if bits == 8:
        W, ws = weights(linear.weight.numpy())
        sums = (W @ X).astype(F)
    else:
        W, step, offset, ws = weights4(linear.weight.numpy())
        sums = np.zeros(len(W), F)
        for s, part in enumerate(X.reshape(-1, 32)):
            sums = sums + (step[:, s] * (W[:, s] @ part).astype(F) + offset[:, s] * F(part.sum()))
    y = sums * (xs * ws)
    return y if linear.bias is None else y + linear.bias.numpy()


def attend(q: Floats, keys: Floats, values: Floats) -> Floats:
    """q [Dh] over keys and values [S, Dh]."""
    scores = folded(q * keys) * (F(1) / np.sqrt(F(len(q))))
    e = exponential(scores - scores.max())
    out = np.zeros_like(q)
    for weight, value in zip(e, values, strict=True):
        out = out + weight * value
    return out * (F(1) / folded(np.pad(e, (0, -len(e) % 8))))


class Twin:
    """One sequence, its keys and values in lists."""

    def __init__(self, decoder: Decoder, bits: int = 8) -> None:
        self.decoder, self.config, self.bits = decoder, decoder.config, bits
        self.keys: list[list[list[Floats]]] = [[[] for _ in range(self.config.kv_heads)] for _ in range(self.config.layers)]
        self.values: list[list[list[Floats]]] = [[[] for _ in range(self.config.kv_heads)] for _ in range(self.config.layers)]
        W, scale = weights(decoder.embedding.numpy())
        self.embedding = W.astype(F) * scale[:, None]

    def hidden(self, token: int, position: int) -> Floats:
        """Hidden row of the next token."""
        x, eps = self.embedding[token].copy(), self.config.rms_eps
        for at, block in enumerate(self.decoder.blocks):
            x = x + self._attention(at, block, norm(x, block.attention_norm.numpy(), eps), position)
            gate, up = np.split(product(norm(x, block.mlp_norm.numpy(), eps), block.gate_up, self.bits), 2)
            x = x + product(gate / (F(1) + exponential(-gate)) * up, block.down, self.bits)
        return norm(x, self.decoder.norm.numpy(), eps)

    def logits(self, hidden: Floats) -> Floats:
        return product(hidden, self.decoder.head)

    def _attention(self, at: int, block: Block, x: Floats, position: int) -> Floats:
        shape = self.config
        heads = product(x, block.qkv, self.bits).reshape(-1, shape.head_dim)
        angles = torch.tensor(float(position)) * rope_frequencies(shape)
        cos, sin = angles.cos().numpy(), angles.sin().numpy()
        for i in range(shape.heads + shape.kv_heads):
            weight = block.q_norm if i < shape.heads else block.k_norm
            head = heads[i] if weight is None else norm(heads[i], weight.numpy(), shape.rms_eps)
            a, b = np.split(head, 2)
            heads[i] = np.concatenate((a * cos - b * sin, b * cos + a * sin))
        out = []
        for h in range(shape.kv_heads):
            self.keys[at][h].append(heads[shape.heads + h])
            self.values[at][h].append(heads[shape.heads + shape.kv_heads + h])
        for i in range(shape.heads):
            h = i // (shape.heads // shape.kv_heads)
            out.append(attend(heads[i], np.stack(self.keys[at][h]), np.stack(self.values[at][h])))
        return product(np.concatenate(out), block.o, self.bits)
