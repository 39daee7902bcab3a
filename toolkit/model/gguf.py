"""GGUF: a file of llama.cpp's format -> the pieces of a checkpoint folder.

In: a .gguf file.   Out: config.json as a dict, tensors by their Hugging Face names as float32 arrays, vocabulary and settings.
Knows nothing about: where the folder is, torch, tokenizer internals.
Invariants: llama's q and k rows, which llama.cpp interleaves, are put back into rotate-half order; what cannot be carried
over exactly is refused by name.
Source: the GGUF specification; llama.cpp's convert_hf_to_gguf for the row order of the llama architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from toolkit.errors import InputError, UnsupportedError
from toolkit.model.gguf_header import check_header

Array = npt.NDArray[np.float32]
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
# GGUF keeps Llama 3's frequency scaling as a table of factors. Released checkpoints use these parameters with
# low_freq_factor 1, high_freq_factor 4; a table that neither reproduces is refused.
_LLAMA3_FACTORS = (8.0, 32.0)
_LLAMA3_CONTEXT = 8192


class GGUFFile:
    """A checked GGUF file: `fields` by key (arrays as lists), `config()`, `tensor_names()`, `tensor(name)`."""

    def __init__(self, path: Path) -> None:
        check_header(path)
        from gguf import GGUFReader

        self.path = path
        try:
            reader = GGUFReader(path)
            self.fields: Mapping[str, Any] = {key: field.contents() for key, field in reader.fields.items()}
        except (ValueError, KeyError, IndexError, TypeError, OverflowError, UnicodeDecodeError) as error:
            raise InputError(f"{path} cannot be read as GGUF: {error}") from error
        self.architecture = str(self.fields.get("general.architecture"))
        if self.architecture not in ARCHITECTURES:
            raise UnsupportedError(
                f"{path}: GGUF architecture {self.architecture[:80]!r} is not implemented: known are {', '.join(ARCHITECTURES)}"
            )
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._rope_table = self._tensors.pop("rope_freqs.weight", None)
        self._source = {_hf_name(name, path): name for name in self._tensors}

    def tensor_names(self) -> list[str]:
        """Hugging Face names of all tensors, sorted."""
        return sorted(self._source)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor as [out, in]."""
        return tuple(int(size) for size in reversed(self._tensors[self._source[name]].shape))

    def tensor(self, name: str) -> Array:
        """A tensor dequantised to float32, rows in Hugging Face order."""
        tensor = self._tensors[self._source[name]]
        values = _dequantized(tensor, self.path)
        if self.architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = self._count("attention.head_count") if ".q_proj." in name else self._kv_heads()
            if values.shape[0] % (2 * heads):
                raise InputError(
                    f"{self.path}: {tensor.name} has {values.shape[0]} rows, which {heads} heads do not divide evenly"
                )
            pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        return np.ascontiguousarray(values, dtype=np.float32)

    def config(self) -> dict[str, Any]:
        """config.json in Hugging Face's words; checked by ModelConfig.from_hf, which the caller runs."""
        self._refuse()
        heads, hidden = self._count("attention.head_count"), self._count("embedding_length")
        head_dim = self._count("attention.key_length", hidden // heads)
        if (
            self._count("attention.value_length", head_dim) != head_dim
            or self._count("rope.dimension_count", head_dim) != head_dim
        ):
            raise UnsupportedError(f"{self.path}: values or rotation narrower than the keys ({head_dim}) are not implemented")
        theta = self._real("rope.freq_base", 10000.0)  # the default of the specification
        scaling = self._rope_scaling(head_dim, theta)
        tokens = self.fields.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, list):
            raise InputError(f"{self.path}: tokenizer.ggml.tokens is missing")
        config: dict[str, Any] = {
            "architectures": [ARCHITECTURES[self.architecture]], "model_type": self.architecture,
            "hidden_size": hidden, "num_hidden_layers": self._count("block_count"), "num_attention_heads": heads,
            "num_key_value_heads": self._kv_heads(), "head_dim": head_dim, "intermediate_size": self._count("feed_forward_length"),
            "vocab_size": self.shape("model.embed_tokens.weight")[0] if "model.embed_tokens.weight" in self._source else len(tokens),
            "max_position_embeddings": self._count("context_length"), "hidden_act": "silu",
            "rms_norm_eps": self._real("attention.layer_norm_rms_epsilon"), "rope_theta": theta, "rope_scaling": scaling,
            "tie_word_embeddings": "lm_head.weight" not in self._source, "attention_dropout": 0.0, "use_cache": True,
            "torch_dtype": "float32",
        }  # fmt: skip
        if self.architecture != "qwen2":
            config["attention_bias"] = "model.layers.0.self_attn.q_proj.bias" in self._source
        if self.architecture == "llama":
            config["mlp_bias"] = False
        return config

    def _refuse(self) -> None:
        for key, harmless in (("expert_count", (0,)), ("attention.sliding_window", (0,)), ("rope.scaling.type", ("none",))):
            value = self.fields.get(f"{self.architecture}.{key}")
            if value is not None and value not in harmless:
                raise UnsupportedError(f"{self.path}: {self.architecture}.{key} = {str(value)[:80]} is not implemented")

    def _kv_heads(self) -> int:
        return self._count("attention.head_count_kv", self._count("attention.head_count"))

    def _rope_scaling(self, head_dim: int, theta: float) -> dict[str, Any] | None:
        if self._rope_table is None:
            return None
        table = _dequantized(self._rope_table, self.path)
        frequencies = theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
        turns = _LLAMA3_CONTEXT * frequencies / (2 * np.pi)
        kept = np.clip((turns - 1.0) / 3.0, 0.0, 1.0)
        for factor in _LLAMA3_FACTORS:
            expected = 1.0 / ((1 - kept) / factor + kept)
            if table.shape == expected.shape and np.allclose(table, expected, rtol=1e-4):
                return {
                    "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": _LLAMA3_CONTEXT,
                }  # fmt: skip
        raise UnsupportedError(f"{self.path}: rope_freqs.weight is a frequency scaling other than Llama 3's")

    def _count(self, key: str, default: int | None = None) -> int:
        value = self.fields.get(f"{self.architecture}.{key}", default)
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 1 << 31:
            return value
        raise InputError(f"{self.path}: {self.architecture}.{key} = {str(value)[:80]} is not allowed: a positive integer")

    def _real(self, key: str, default: float | None = None) -> float:
        value = self.fields.get(f"{self.architecture}.{key}", default)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf"):
            return float(str(np.float32(value)))  # stored as float32: 1e-05, not 9.999999747378752e-06
        raise InputError(f"{self.path}: {self.architecture}.{key} = {str(value)[:80]} is not allowed: a positive number")


def _hf_name(name: str, path: Path) -> str:
    parts = name.split(".")
    if len(parts) == 2 and parts[0] in _WHOLE and parts[1] == "weight":
        return f"{_WHOLE[parts[0]]}.weight"
    if len(parts) == 4 and parts[0] == "blk" and parts[1].isdecimal() and parts[2] in _LAYER and parts[3] in ("weight", "bias"):
        return f"model.layers.{int(parts[1])}.{_LAYER[parts[2]]}.{parts[3]}"
    raise UnsupportedError(f"{path}: tensor {name[:80]!r} is not part of a dense Llama-like model")


def _dequantized(tensor: Any, path: Path) -> Array:
    from gguf.quants import dequantize

    shape = tuple(int(size) for size in reversed(tensor.shape))
    try:
        return np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32).reshape(shape)
    except NotImplementedError as error:
        raise UnsupportedError(
            f"{path}: {tensor.name} is stored as {tensor.tensor_type.name}, which is not implemented"
        ) from error
    except (ValueError, TypeError) as error:
        raise InputError(f"{path}: {tensor.name} is damaged: {error}") from error
