"""Weights: a folder of safetensors and a config.json -> Decoder.

In: a folder.   Out: a Decoder on one device in one dtype.
Knows nothing about: tokenizers, GGUF, caches.
Invariants: every tensor is there, nothing is left over, every shape is the one the config demands, every weight is a finite number
in the type that it is computed with; nothing is unpickled.
Source: the tensor names of Hugging Face transformers; the safetensors format.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from toolkit.errors import InputError, UnsupportedError, UsageError
from toolkit.model.config import ModelConfig
from toolkit.model.decoder import Block, Decoder, Linear
from toolkit.model.layout import check_tensors, read_config, weight_files

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(folder: Path | str, *, device: str = "cpu", dtype: str = "float32") -> Decoder:
    """Read a checkpoint folder. InputError for a damaged one, UnsupportedError for one that is not implemented."""
    folder = Path(folder)
    if dtype not in DTYPES:
        raise UsageError(f"dtype = {dtype!r} is not allowed: {', '.join(DTYPES)}")
    config = read_config(folder)
    with ExitStack() as stack:
        tensors = _open(folder, stack)
        _check(config, tensors, folder)
        return build(config, lambda name: _take(tensors, name, DTYPES[dtype], device))


def build(config: ModelConfig, take: Callable[[str], Tensor]) -> Decoder:
    """Assemble a Decoder; `take(name)` gives the tensors that `layout.shape_of` names."""
    embedding = take("model.embed_tokens.weight")
    blocks = tuple(_block(config, f"model.layers.{i}.", take) for i in range(config.layers))
    head = embedding if config.tied else take("lm_head.weight")
    return Decoder(config, embedding, blocks, take("model.norm.weight"), head)


def _block(config: ModelConfig, prefix: str, take: Callable[[str], Tensor]) -> Block:
    def joined(kind: str, *names: str) -> Tensor:
        return torch.cat([take(f"{prefix}{name}_proj.{kind}") for name in names])

    heads = ("self_attn.q", "self_attn.k", "self_attn.v")
    return Block(
        attention_norm=take(prefix + "input_layernorm.weight"),
        qkv=Linear(joined("weight", *heads), joined("bias", *heads) if config.qkv_bias else None),
        o=Linear(joined("weight", "self_attn.o"), joined("bias", "self_attn.o") if config.o_bias else None),
        mlp_norm=take(prefix + "post_attention_layernorm.weight"),
        gate_up=Linear(joined("weight", "mlp.gate", "mlp.up")),
        down=Linear(joined("weight", "mlp.down")),
        q_norm=take(prefix + "self_attn.q_norm.weight") if config.qk_norm else None,
        k_norm=take(prefix + "self_attn.k_norm.weight") if config.qk_norm else None,
    )


def _open(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Tensor name -> open safetensors file that holds it."""
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, Any] = {}
    for path in weight_files(folder):
        try:
            handle = stack.enter_context(safe_open(path, framework="pt"))
            names = list(handle.keys())
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path} is not a readable safetensors file: {error}") from error
        twice = sorted(set(names) & set(tensors))
        if twice:
            raise InputError(f"{path} repeats tensors of another file: {', '.join(twice[:5])}")
        tensors |= dict.fromkeys(names, handle)
    return tensors


def _check(config: ModelConfig, tensors: dict[str, Any], folder: Path) -> None:
    check_tensors(config, {name: tuple(handle.get_slice(name).get_shape()) for name, handle in tensors.items()}, folder)
    if config.tied and "lm_head.weight" in tensors:
        head, embedding = (tensors[name].get_tensor(name) for name in ("lm_head.weight", "model.embed_tokens.weight"))
        if not torch.equal(head, embedding):
            raise InputError(f"{folder}: tie_word_embeddings is true but lm_head.weight differs from the embedding")


def _take(tensors: dict[str, Any], name: str, dtype: torch.dtype, device: str) -> Tensor:
    tensor: Tensor = tensors[name].get_tensor(name)
    if not tensor.is_floating_point():
        raise UnsupportedError(f"tensor {name} is stored as {tensor.dtype}: quantised checkpoints are not implemented")
    tensor = tensor.to(device=device, dtype=dtype)
    if not torch.isfinite(tensor).all():
        raise InputError(f"tensor {name} holds NaN or infinity as {str(dtype).removeprefix('torch.')}")
    return tensor
