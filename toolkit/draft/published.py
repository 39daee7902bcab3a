"""Published: heads in the layouts of other projects, told apart by what their folder holds.

    EAGLE-1     config.json of LlamaForCausalLMEagle, model.safetensors                                        (eagle.py)
    Medusa-1    config.json with medusa_num_heads, medusa_lm_head.safetensors with {head}.{block}.linear.*, {head}.{blocks}.weight
    MTP         the target's own checkpoint: mtp.* as in Qwen3-Next and Qwen3.5, or one layer more with enorm, hnorm and eh_proj as in
                DeepSeek-V3, where the module is a dense layer of a kind that this engine runs

In: a folder and the target's shape.   Out: an MtpHead or a MedusaHead.
Knows nothing about: engines. Nothing binds such a head to its base but its shapes.
Invariants: pickled weights are not read; what is not implemented (experts, compressed attention, other trunks) is refused by name.
Source: the checkpoints of 2401.10774; SGLang 0.5.23, models/qwen3_next_mtp.py and deepseek_nextn.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from toolkit.draft.eagle import ARCHITECTURE, read_eagle
from toolkit.draft.medusa_file import MOST_BLOCKS, MOST_HEADS
from toolkit.draft.medusa_head import MedusaHead
from toolkit.draft.mtp_file import assemble
from toolkit.draft.mtp_head import MtpHead
from toolkit.draft.tensors import read_some, read_tensors
from toolkit.errors import InputError, UnsupportedError
from toolkit.model.config import ModelConfig
from toolkit.model.layout import folder_entries, read_config, read_json

MEDUSA_WEIGHTS = "medusa_lm_head.safetensors"
_LAYER = {  # tensor of a dense layer -> its part
    "self_attn.q_proj": "q", "self_attn.k_proj": "k", "self_attn.v_proj": "v", "self_attn.o_proj": "o",
    "input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "gate", "mlp.up_proj": "up", "mlp.down_proj": "down",
}  # fmt: skip
_QWEN = {"mtp.fc": "fc", "mtp.pre_fc_norm_embedding": "embed_norm", "mtp.pre_fc_norm_hidden": "hidden_norm", "mtp.norm": "norm"}
_DEEPSEEK = {"eh_proj": "fc", "enorm": "embed_norm", "hnorm": "hidden_norm", "shared_head.norm": "norm"}
_COPIES = ("embed_tokens", "shared_head.head")  # of the target's own matrices, which are used instead


def read_published_mtp(folder: Path, target: ModelConfig, vocab_size: int) -> MtpHead:
    """An EAGLE-1 head, or the module of a checkpoint whose trunk is the target."""
    data = read_json(folder / "config.json")
    if data.get("architectures") == [ARCHITECTURE]:
        return read_eagle(folder, target, vocab_size)
    config = read_config(folder)  # refuses a trunk that is not implemented
    if replace(config, file_dtype="") != replace(target, file_dtype=""):
        raise InputError(f"{folder} is a checkpoint of another shape than the target: its module cannot draft for it")
    return _module(folder, config, vocab_size)


def _module(folder: Path, config: ModelConfig, vocab_size: int) -> MtpHead:
    entries = {entry.name: entry for entry in folder_entries(folder)}
    deep = f"model.layers.{config.layers}."
    if f"{deep}eh_proj.weight" in entries:
        prefix, outer = deep, {f"{deep}{name}": part for name, part in _DEEPSEEK.items()}
        names = [
            name for name in entries if name.startswith(deep) and not name.startswith(tuple(deep + copy for copy in _COPIES))
        ]
    elif "mtp.fc.weight" in entries:
        prefix, outer = "mtp.layers.0.", dict(_QWEN)
        names = [name for name in entries if name.startswith("mtp.")]
    else:
        raise UnsupportedError(f"{folder} has no module that this engine knows: neither mtp.fc nor {deep}eh_proj")
    parts = {f"{name}.weight": part for name, part in ({prefix + name: part for name, part in _LAYER.items()} | outer).items()}
    if unknown := sorted(set(names) - set(parts)):
        raise UnsupportedError(
            f"{folder}: a module with {', '.join(unknown)[:200]} is not implemented: a dense Llama-like layer is"
        )
    if missing := sorted(set(parts) - set(names)):
        raise InputError(f"{folder}: the module lacks {', '.join(missing)[:200]}")
    return _assembled(config, _read(folder, config, parts), vocab_size)


def _read(folder: Path, c: ModelConfig, parts: Mapping[str, str]) -> dict[str, Tensor]:
    """Every part, its shape checked."""
    D, q, kv = c.hidden_size, c.heads * c.head_dim, c.kv_heads * c.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "fc": (D, 2 * D), "q": (q, D), "k": (kv, D), "v": (kv, D), "o": (D, q), "gate": (c.intermediate, D),
        "up": (c.intermediate, D), "down": (D, c.intermediate),
    }  # fmt: skip
    paths = {entry.name: entry.path for entry in folder_entries(folder)}
    return {part: read_some(paths[name], name, shapes.get(part, (D,))) for name, part in parts.items()}


def _assembled(c: ModelConfig, found: dict[str, Tensor], vocab_size: int) -> MtpHead:
    if c.qkv_bias or c.o_bias or c.qk_norm:
        raise UnsupportedError("a module with attention biases or query-key norms is not implemented")
    named = {
        name: found[name] for name in ("fc", "o", "down", "attention_norm", "mlp_norm", "embed_norm", "hidden_norm", "norm")
    }
    named |= {
        "fc_bias": torch.zeros(c.hidden_size), "qkv": torch.cat([found[name] for name in "qkv"]),
        "gate_up": torch.cat((found["gate"], found["up"])), "ids": torch.arange(vocab_size),
    }  # fmt: skip
    return assemble(replace(c, layers=1, vocab_size=vocab_size, tied=True), named)


def read_published_medusa(folder: Path, target: ModelConfig, vocab_size: int) -> MedusaHead:
    """Medusa-1 heads, each with its own output matrix."""
    path = folder / MEDUSA_WEIGHTS
    if not path.exists():
        pickled = sorted(file.name for file in folder.glob("*.pt"))
        what = f"holds {', '.join(pickled[:3])}: pickled weights are not read" if pickled else f"has no {MEDUSA_WEIGHTS}"
        raise UnsupportedError(f"{folder} {what}", hint="convert the heads to safetensors under that name")
    data = read_json(folder / "config.json")
    heads, blocks = data.get("medusa_num_heads"), data.get("medusa_num_layers", 1)
    for name, value, most in (("medusa_num_heads", heads, MOST_HEADS), ("medusa_num_layers", blocks, MOST_BLOCKS)):
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise InputError(
                f"{folder / 'config.json'}: {name} = {str(value)[:80]} is not allowed: an integer from 1 to {most}"
            )
    assert isinstance(heads, int)
    D, V = target.hidden_size, target.vocab_size
    wanted: dict[str, tuple[int, ...]] = {f"{i}.{j}.linear.weight": (D, D) for i in range(heads) for j in range(blocks)}
    wanted |= {f"{i}.{j}.linear.bias": (D,) for i in range(heads) for j in range(blocks)}
    wanted |= {f"{i}.{blocks}.weight": (V, D) for i in range(heads)}
    found = read_tensors(path, wanted)

    def stacked(kind: str) -> Tensor:
        return torch.stack([torch.stack([found[f"{i}.{j}.linear.{kind}"] for j in range(blocks)]) for i in range(heads)])

    outputs = torch.stack([found[f"{i}.{blocks}.weight"][:vocab_size] for i in range(heads)])
    return MedusaHead(stacked("weight"), stacked("bias"), torch.arange(vocab_size), outputs)
