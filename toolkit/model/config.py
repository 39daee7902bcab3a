"""ModelConfig: the shape of a dense Llama-like decoder, read from a Hugging Face config.json.

In: the parsed config.json of a Llama, SmolLM2, Qwen2 or Qwen3 (dense) checkpoint.   Out: a frozen record.
Knows nothing about: tensors, files, tokenizers.
Invariants: what the decoder does not implement is refused by name; a value that changes the result is never guessed, only
taken from the file or from the default that the architecture itself declares.
Source: the configuration classes of Hugging Face transformers (field names and their defaults).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.errors import InputError, UnsupportedError

ARCHITECTURES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
_MOST = 1 << 24  # no width, head count or vocabulary of a real checkpoint comes near; larger is a broken file
_MOST_LAYERS = 1024
# Keys that ask for something the decoder does not compute, with the values that do not.
_REFUSED: dict[str, tuple[object, ...]] = {
    "mlp_bias": (None, False),
    "use_sliding_window": (None, False),
    "partial_rotary_factor": (None, 1, 1.0),
    "pretraining_tp": (None, 0, 1),
    "quantization_config": (None,),
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "hidden_act": ("silu", "swish"),
    "is_encoder_decoder": (None, False),
}


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3's frequency rescaling ("llama3"): long wavelengths are slowed by `factor`, the middle is blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of a decoder. D hidden_size, L layers, H heads, Hkv kv_heads, Dh head_dim, V vocab_size; context in tokens."""

    architecture: str
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab_size: int
    context: int
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    rms_eps: float
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    file_dtype: str = "float32"

    @classmethod
    def from_hf(cls, data: Mapping[str, Any]) -> ModelConfig:
        """Read a parsed config.json. UnsupportedError for what is not implemented, InputError for what is malformed."""
        kind = _architecture(data)
        for key, harmless in _REFUSED.items():
            value = data.get(key)
            if not any(value is ok or (ok is not None and value == ok) for ok in harmless):
                raise UnsupportedError(f"config.json: {key} = {str(value)[:80]} is not implemented: allowed is {harmless}")
        types = data.get("layer_types") or ["full_attention"]
        if not isinstance(types, list):
            raise InputError(f"config.json: layer_types = {str(types)[:80]} must be a list")
        if any(name != "full_attention" for name in types):
            found = ", ".join(sorted({str(name) for name in types}))[:200]
            raise UnsupportedError(f"config.json: layer_types has {found}: only full_attention is implemented")
        hidden, heads = _count(data, "hidden_size"), _count(data, "num_attention_heads")
        kv_heads = heads if kind == "llama" and data.get("num_key_value_heads") is None else _count(data, "num_key_value_heads")
        head_dim = _head_dim(data, kind, hidden, heads)
        if heads % kv_heads:
            raise InputError(f"config.json: num_attention_heads = {heads} is no multiple of num_key_value_heads = {kv_heads}")
        theta, scaling = _rope(data, kind)
        bias = _flag(data, "attention_bias")
        return cls(
            architecture=kind, hidden_size=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
            layers=_count(data, "num_hidden_layers", _MOST_LAYERS), intermediate=_count(data, "intermediate_size"),
            vocab_size=_count(data, "vocab_size"), context=_count(data, "max_position_embeddings"),
            rope_theta=theta, rope_scaling=scaling, rms_eps=_real(data, "rms_norm_eps"),
            qkv_bias=bias or kind == "qwen2", o_bias=bias and kind != "qwen2", qk_norm=kind == "qwen3",
            tied=_flag(data, "tie_word_embeddings"), file_dtype=str(data.get("dtype") or data.get("torch_dtype") or "float32"),
        )  # fmt: skip


def _architecture(data: Mapping[str, Any]) -> str:
    names = data.get("architectures")
    if isinstance(names, list) and len(names) == 1 and names[0] in ARCHITECTURES:
        return ARCHITECTURES[names[0]]
    if names is None and data.get("model_type") in ARCHITECTURES.values():
        return str(data["model_type"])
    found = str(names if names is not None else data.get("model_type"))[:200]
    raise UnsupportedError(f"config.json: architecture {found} is not implemented: known are {', '.join(ARCHITECTURES)}")


def _head_dim(data: Mapping[str, Any], kind: str, hidden: int, heads: int) -> int:
    if data.get("head_dim") is not None:
        head_dim = _count(data, "head_dim")
    elif kind == "qwen3":
        raise InputError("config.json: head_dim is missing; a Qwen3 checkpoint must state it")
    elif hidden % heads:
        raise InputError(f"config.json: hidden_size = {hidden} is no multiple of num_attention_heads = {heads}")
    else:
        head_dim = hidden // heads
    if head_dim % 2:
        raise InputError(f"config.json: head_dim = {head_dim} is not allowed: rotary embedding needs an even number")
    return head_dim


def _rope(data: Mapping[str, Any], kind: str) -> tuple[float, RopeScaling | None]:
    """Base and scaling from either spelling: `rope_theta` + `rope_scaling`, or one `rope_parameters`."""
    both = data.get("rope_parameters") or data.get("rope_scaling") or {}
    if not isinstance(both, Mapping):
        raise InputError(f"config.json: rope_parameters / rope_scaling = {str(both)[:80]} must be an object")
    holder = both if "rope_theta" in both else data
    # Llama's own default; the first Llama checkpoints do not write it.
    theta = 10000.0 if kind == "llama" and holder.get("rope_theta") is None else _real(holder, "rope_theta")
    if both.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedError(f"config.json: partial_rotary_factor = {both['partial_rotary_factor']} is not implemented")
    name = both.get("rope_type", both.get("type", "default"))
    if name == "default":
        return theta, None
    if name != "llama3":
        raise UnsupportedError(f"config.json: rope scaling {str(name)[:80]!r} is not implemented: known are default, llama3")
    low, high = _real(both, "low_freq_factor"), _real(both, "high_freq_factor")
    if high <= low:
        raise InputError(f"config.json: high_freq_factor = {high} must be greater than low_freq_factor = {low}")
    return theta, RopeScaling(_real(both, "factor"), low, high, _count(both, "original_max_position_embeddings"))


def _count(data: Mapping[str, Any], key: str, most: int = _MOST) -> int:
    value = data.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most:
        return value
    raise InputError(f"config.json: {key} = {str(value)[:80]} is not allowed: an integer from 1 to {most}")


def _real(data: Mapping[str, Any], key: str) -> float:
    value = data.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max:
        return float(value)
    raise InputError(f"config.json: {key} = {str(value)[:80]} is not allowed: a positive number")


def _flag(data: Mapping[str, Any], key: str) -> bool:
    value = data.get(key, False)
    if isinstance(value, bool):
        return value
    raise InputError(f"config.json: {key} = {str(value)[:80]} is not allowed: true or false")
