"""Layout: which files, tensor names and shapes a checkpoint folder has.

In: a folder or a ModelConfig.   Out: parsed JSON, file lists, name -> shape.
Knows nothing about: torch, tensors' contents.
Invariants: files are bounded in size before they are parsed; no name leads out of the folder.
Source: the folder layout and tensor names of Hugging Face transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.errors import InputError, UnsupportedError
from toolkit.model.config import ModelConfig
from toolkit.model.safetensors_header import TensorEntry, tensor_entries

_MOST_JSON = 64 << 20  # bytes; the index of a 1,000-layer model is far below


def read_config(folder: Path) -> ModelConfig:
    """The ModelConfig of folder/config.json."""
    return ModelConfig.from_hf(read_json(folder / "config.json"))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of bounded size; InputError where it is absent or none."""
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise InputError(f"{path} is no file")
        if path.stat().st_size > _MOST_JSON:
            raise InputError(f"{path} is larger than {_MOST_JSON} bytes")
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise InputError(f"{path} must hold a JSON object, not {type(data).__name__}")
    return data


def shape_of(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a checkpoint."""
    c, width, kv_width = config, config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (c.vocab_size, c.hidden_size),
        "model.norm.weight": (c.hidden_size,),
    }
    if not c.tied:
        shapes["lm_head.weight"] = (c.vocab_size, c.hidden_size)
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (c.hidden_size,),
        "post_attention_layernorm.weight": (c.hidden_size,),
        "self_attn.q_proj.weight": (width, c.hidden_size),
        "self_attn.k_proj.weight": (kv_width, c.hidden_size),
        "self_attn.v_proj.weight": (kv_width, c.hidden_size),
        "self_attn.o_proj.weight": (c.hidden_size, width),
        "mlp.gate_proj.weight": (c.intermediate, c.hidden_size),
        "mlp.up_proj.weight": (c.intermediate, c.hidden_size),
        "mlp.down_proj.weight": (c.hidden_size, c.intermediate),
    }
    if c.qkv_bias:
        layer |= {"self_attn.q_proj.bias": (width,), "self_attn.k_proj.bias": (kv_width,), "self_attn.v_proj.bias": (kv_width,)}
    if c.o_bias:
        layer["self_attn.o_proj.bias"] = (c.hidden_size,)
    if c.qk_norm:
        layer |= {"self_attn.q_norm.weight": (c.head_dim,), "self_attn.k_norm.weight": (c.head_dim,)}
    return shapes | {f"model.layers.{i}.{name}": shape for i in range(c.layers) for name, shape in layer.items()}


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint: those its index names, or model.safetensors."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.exists():
        listed = read_json(index).get("weight_map")
        if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
            raise InputError(f"{index}: weight_map must map tensor names to file names")
        names = sorted(set(listed.values()))
        if any(Path(name).name != name or not name.endswith(".safetensors") for name in names):
            raise InputError(f"{index}: weight_map names something other than .safetensors files of this folder")
        return [folder / name for name in names]
    if single.exists():
        return [single]
    others = sorted(path.name for path in folder.glob("*") if path.suffix in (".bin", ".pt", ".pth", ".ckpt", ".gguf"))
    if others:
        raise UnsupportedError(
            f"{folder} holds {', '.join(others[:5])} but no model.safetensors: pickled checkpoints are not read",
            hint="convert it to safetensors; pull a .gguf file by its own path",
        )
    raise InputError(f"{folder} holds neither model.safetensors nor model.safetensors.index.json")


def check_folder(folder: Path) -> None:
    """A checkpoint folder has every file, tensor and shape that its config demands; no weight is read."""
    if not (folder / "tokenizer.json").exists():
        raise InputError(f"{folder} has no tokenizer.json", hint="a model folder with a tokenizers-format tokenizer is needed")
    found: dict[str, tuple[int, ...]] = {}
    for entry in folder_entries(folder):
        if entry.name in found:
            raise InputError(f"{folder}: tensor {entry.name} is in more than one file")
        found[entry.name] = entry.shape
    check_tensors(read_config(folder), found, folder)


def folder_entries(folder: Path) -> list[TensorEntry]:
    """All tensors of a checkpoint's files."""
    return [entry for path in weight_files(folder) for entry in tensor_entries(path)]


def _drafting(config: ModelConfig, names: set[str]) -> set[str]:
    """Tensors of a module that drafts for the model, which runs without it: as Qwen3-Next names them, or as DeepSeek-V3 does."""
    deep = f"model.layers.{config.layers}."
    prefixes = ("mtp.", deep) if f"{deep}eh_proj.weight" in names else ("mtp.",)
    return {name for name in names if name.startswith(prefixes)}


def check_tensors(config: ModelConfig, found: Mapping[str, tuple[int, ...]], where: Path) -> None:
    """InputError, listing the names, where tensors are missing, unexpected or of another shape."""
    wanted = shape_of(config)
    names = {name for name in found if not name.endswith("rotary_emb.inv_freq")}  # old checkpoints carry this constant
    names -= _drafting(config, names)
    if config.tied:
        names.discard("lm_head.weight")  # a copy of the embedding; the loader checks that it is one
    for what, wrong in (("lacks", set(wanted) - names), ("has unexpected", names - set(wanted))):
        if wrong:
            raise InputError(f"{where} {what} {len(wrong)} tensors: {', '.join(sorted(wrong)[:8])}")
    for name, shape in wanted.items():
        if found[name] != shape:
            raise InputError(f"{where}: tensor {name} has shape {list(found[name])}, its config demands {list(shape)}")
