"""An EAGLE-1 draft checkpoint with random weights: it is always wrong, which is all that a test of exactness needs."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file


def write_random_eagle(target: Path, folder: Path, seed: int = 0) -> Path:
    """A folder that SGLang loads beside `target` (a Llama-shaped checkpoint): one layer and `fc`, which joins an embedding and a hidden state."""
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    config |= {"architectures": ["LlamaForCausalLMEagle"], "num_hidden_layers": 1, "tie_word_embeddings": False}
    make = torch.Generator().manual_seed(seed)
    width, inner = config["hidden_size"], config["intermediate_size"]
    head = config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head

    def random(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=make) / columns**0.5

    save_file(
        {
            "fc.weight": random(width, 2 * width),
            "fc.bias": torch.zeros(width),
            "layers.0.self_attn.q_proj.weight": random(queries, width),
            "layers.0.self_attn.k_proj.weight": random(keys, width),
            "layers.0.self_attn.v_proj.weight": random(keys, width),
            "layers.0.self_attn.o_proj.weight": random(width, queries),
            "layers.0.mlp.gate_proj.weight": random(inner, width),
            "layers.0.mlp.up_proj.weight": random(inner, width),
            "layers.0.mlp.down_proj.weight": random(width, inner),
            "layers.0.post_attention_layernorm.weight": torch.ones(width),
        },
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
