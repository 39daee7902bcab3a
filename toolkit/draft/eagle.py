"""Eagle: an MtpHead in the layout of published EAGLE-1 draft checkpoints, which SGLang serves as LlamaForCausalLMEagle.

    fc.weight fc.bias   layers.0.self_attn.{q,k,v,o}_proj.weight   layers.0.post_attention_layernorm.weight
    layers.0.mlp.{gate,up,down}_proj.weight   (embed_tokens.weight: a copy of the target's, which is used instead)

In: a head, or a folder with config.json and model.safetensors.   Out: the folder, or the head.
Knows nothing about: servers, training.
Invariants: writing and reading give the same weights; what LlamaForCausalLMEagle does not compute (norms of inputs and outputs,
more layers, biases) is refused by name.
Source: the checkpoints of 2401.15077; SGLang 0.5.23, models/llama_eagle.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from toolkit.draft.mtp_file import assemble
from toolkit.draft.mtp_head import MtpHead
from toolkit.draft.tensors import read_tensors, shapes_in
from toolkit.errors import InputError, UnsupportedError
from toolkit.model.config import ModelConfig
from toolkit.model.layout import read_json

ARCHITECTURE = "LlamaForCausalLMEagle"
CONFIG, WEIGHTS = "config.json", "model.safetensors"
_LAYER = "layers.0."


def write_eagle(folder: Path, head: MtpHead, target: ModelConfig) -> None:
    """config.json and model.safetensors (float16). UnsupportedError for a head that EAGLE-1 cannot express."""
    from safetensors.torch import save_file

    extra = {"embed_norm": head.embed_norm, "hidden_norm": head.hidden_norm, "norm": head.norm}
    extra["attention_norm"] = head.block.attention_norm
    if found := [name for name, tensor in extra.items() if tensor is not None]:
        raise UnsupportedError(f"an EAGLE-1 head has no {', '.join(found)}: this head cannot be exported exactly")
    if target.qkv_bias or target.o_bias or target.qk_norm or target.rope_scaling is not None:
        raise UnsupportedError("attention biases, query-key norms and scaled rotations are not exported to EAGLE-1")
    c, block = head.config, head.block
    q, k, v = torch.split(block.qkv.weight, [c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim])
    gate, up = block.gate_up.weight.chunk(2)
    tensors = {
        "fc.weight": head.fc, "fc.bias": head.fc_bias,
        **{f"{_LAYER}self_attn.{name}_proj.weight": w for name, w in (("q", q), ("k", k), ("v", v), ("o", block.o.weight))},
        f"{_LAYER}post_attention_layernorm.weight": block.mlp_norm,
        **{f"{_LAYER}mlp.{name}_proj.weight": w for name, w in (("gate", gate), ("up", up), ("down", block.down.weight))},
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    half = {name: tensor.detach().to(torch.float16).contiguous() for name, tensor in tensors.items() if tensor is not None}
    save_file(half, folder / WEIGHTS, {"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(_config(c, target), indent=2) + "\n", encoding="utf-8")


def _config(layer: ModelConfig, target: ModelConfig) -> dict[str, Any]:
    """Never tied: SGLang takes the target's embedding and head for the draft's, and frees the draft's own one by one."""
    return {
        "architectures": [ARCHITECTURE], "model_type": "llama", "hidden_size": layer.hidden_size, "num_hidden_layers": 1,
        "num_attention_heads": layer.heads, "num_key_value_heads": layer.kv_heads, "head_dim": layer.head_dim,
        "intermediate_size": layer.intermediate, "vocab_size": target.vocab_size, "max_position_embeddings": target.context,
        "rope_theta": layer.rope_theta, "rms_norm_eps": layer.rms_eps, "hidden_act": "silu", "attention_bias": False,
        "mlp_bias": False, "tie_word_embeddings": False, "dtype": "float16", "torch_dtype": "float16",
    }  # fmt: skip


def read_eagle(folder: Path, target: ModelConfig, vocab_size: int) -> MtpHead:
    """A published EAGLE-1 head for a target of that shape; it guesses any of the target's tokens.

    UnsupportedError for another layout, InputError for one that does not fit the target.
    """
    data = read_json(folder / CONFIG)
    if data.get("architectures") not in ([ARCHITECTURE], None) or data.get("model_type") != "llama":
        raise UnsupportedError(
            f"{folder}: architecture {str(data.get('architectures'))[:80]} is no EAGLE-1 head: {ARCHITECTURE} is"
        )
    plain = {**data, "architectures": ["LlamaForCausalLM"]}
    try:
        c = ModelConfig.from_hf({key: value for key, value in plain.items() if value is not None})
    except OverflowError as error:
        raise InputError(f"{folder / CONFIG} holds a number that is too large: {error}") from error
    if c.layers != 1 or c.qkv_bias or c.o_bias:
        raise UnsupportedError(f"{folder}: an EAGLE-1 head of {c.layers} layers, or with attention biases, is not implemented")
    if (c.hidden_size, c.vocab_size) != (target.hidden_size, target.vocab_size):
        raise InputError(
            f"{folder} is {c.hidden_size} wide over {c.vocab_size} tokens, the target {target.hidden_size} over {target.vocab_size}"
        )
    return _read(folder / WEIGHTS, c, vocab_size)


def _read(path: Path, c: ModelConfig, vocab_size: int) -> MtpHead:
    D, q, kv = c.hidden_size, c.heads * c.head_dim, c.kv_heads * c.head_dim
    found = shapes_in(path)
    wanted: dict[str, tuple[int, ...]] = {
        "fc.weight": (D, 2 * D),
        **{f"{_LAYER}self_attn.{name}_proj.weight": (rows, D) for name, rows in (("q", q), ("k", kv), ("v", kv))},
        f"{_LAYER}self_attn.o_proj.weight": (D, q), f"{_LAYER}post_attention_layernorm.weight": (D,),
        f"{_LAYER}mlp.gate_proj.weight": (c.intermediate, D), f"{_LAYER}mlp.up_proj.weight": (c.intermediate, D),
        f"{_LAYER}mlp.down_proj.weight": (D, c.intermediate),
    }  # fmt: skip
    more = {"fc.bias": (D,), "embed_tokens.weight": (c.vocab_size, D), "lm_head.weight": (c.vocab_size, D)}
    tensors = read_tensors(path, wanted | {name: shape for name, shape in more.items() if name in found})

    def layer(*names: str) -> Tensor:
        return torch.cat([tensors[f"{_LAYER}{name}_proj.weight"] for name in names])

    named = {
        "fc": tensors["fc.weight"], "fc_bias": tensors.get("fc.bias", torch.zeros(D)),
        "qkv": layer("self_attn.q", "self_attn.k", "self_attn.v"), "o": layer("self_attn.o"),
        "mlp_norm": tensors[f"{_LAYER}post_attention_layernorm.weight"], "gate_up": layer("mlp.gate", "mlp.up"),
        "down": layer("mlp.down"), "ids": torch.arange(vocab_size),
    }  # fmt: skip
    return assemble(replace(c, vocab_size=vocab_size, tied=True), named)
