"""Published layouts: small folders in the layouts of other projects become heads, others are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.draft.heads import NORMS, random_mtp
from tests.draft.sources import TARGETS
from toolkit.contracts import SamplingParams
from toolkit.draft.contract import Budget, Commit
from toolkit.draft.eagle import write_eagle
from toolkit.draft.medusa import MedusaSource
from toolkit.draft.mtp import MtpSource
from toolkit.draft.mtp_file import weights_of
from toolkit.draft.mtp_head import MtpHead
from toolkit.draft.published import read_published_medusa, read_published_mtp
from toolkit.errors import InputError, UnsupportedError
from toolkit.model.config import ModelConfig
from toolkit.model.layout import shape_of
from toolkit.model.weights import load_model

VOCAB = 261
QWEN = {"fc": "fc", "embed_norm": "pre_fc_norm_embedding", "hidden_norm": "pre_fc_norm_hidden", "norm": "norm"}
DEEPSEEK = {"fc": "eh_proj", "embed_norm": "enorm", "hidden_norm": "hnorm", "norm": "shared_head.norm"}


def target() -> ModelConfig:
    return TARGETS["torch"]().decoder.config


def layer_of(head: MtpHead) -> dict[str, Tensor]:
    c, block = head.config, head.block
    q, k, v = torch.split(block.qkv.weight, [c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim])
    gate, up = block.gate_up.weight.chunk(2)
    assert block.attention_norm is not None and block.mlp_norm is not None
    return {
        "self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v, "self_attn.o_proj": block.o.weight,
        "input_layernorm": block.attention_norm, "post_attention_layernorm": block.mlp_norm, "mlp.gate_proj": gate,
        "mlp.up_proj": up, "mlp.down_proj": block.down.weight,
    }  # fmt: skip


def checkpoint(folder: Path, layout: str) -> MtpHead:
    """A trunk like the target with a module in a published layout."""
    config = target()
    head = random_mtp(config, VOCAB, norms=NORMS)
    inner, outer = ("mtp.layers.0.", "mtp.") if layout == "qwen" else (f"model.layers.{config.layers}.",) * 2
    names = QWEN if layout == "qwen" else DEEPSEEK
    tensors = {name: torch.randn(shape) for name, shape in shape_of(config).items()}
    tensors |= {f"{inner}{name}.weight": tensor for name, tensor in layer_of(head).items()}
    tensors |= {f"{outer}{name}.weight": weights_of(head)[part] for part, name in names.items()}
    if layout == "deepseek":
        tensors |= {
            f"{outer}embed_tokens.weight": torch.zeros(VOCAB, 32),
            f"{outer}shared_head.head.weight": torch.zeros(VOCAB, 32),
        }
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    shape = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads, "num_key_value_heads": config.kv_heads, "intermediate_size": config.intermediate,
        "vocab_size": VOCAB, "max_position_embeddings": config.context, "rope_theta": config.rope_theta,
        "rms_norm_eps": config.rms_eps, "tie_word_embeddings": False, "hidden_act": "silu",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(shape))
    return head


@pytest.mark.parametrize("layout", ["qwen", "deepseek"])
def test_a_module_in_the_targets_own_checkpoint_is_read_weight_by_weight_and_drafts(tmp_path: Path, layout: str) -> None:
    head = checkpoint(tmp_path, layout)
    found = read_published_mtp(tmp_path, target(), VOCAB)
    one, other = weights_of(head), weights_of(found)
    assert all(torch.equal(one[name], other[name]) for name in one if name != "fc_bias")
    assert float(other["fc_bias"].abs().max()) == 0.0 and found.ids.tolist() == list(range(VOCAB))
    drafter = MtpSource(TARGETS["torch"](), {"head": str(tmp_path), "floor": 0.0}).open(0)
    drafter.observe(Commit((1, 2, 3), torch.randn(2, 32), 0))
    assert len(drafter.propose(Budget(6, 3, SamplingParams()))) == 6
    drafter.close()


@pytest.mark.parametrize("layout", ["qwen", "deepseek"])
def test_the_trunk_of_such_a_checkpoint_loads_without_its_module(tmp_path: Path, layout: str) -> None:
    checkpoint(tmp_path, layout)
    assert len(load_model(tmp_path).blocks) == target().layers


@pytest.mark.parametrize(
    ("add", "words"),
    [
        ({"mtp.layers.0.mlp.experts.0.gate_proj.weight": torch.zeros(2)}, "experts.0.gate_proj.weight is not implemented"),
        ({"mtp.layers.1.mlp.gate_proj.weight": torch.zeros(2)}, "layers.1.mlp.gate_proj.weight is not implemented"),
        ({"mtp.layers.0.self_attn.q_proj.weight": torch.zeros(2)}, r"q_proj.weight has shape \[2\]"),
        ({"mtp.norm.weight": torch.full((32,), torch.nan)}, "holds NaN"),
        ({"mtp.norm.weight": None}, "lacks mtp.norm.weight"),
        ({"mtp.fc.weight": None}, "has no module that this engine knows"),
    ],
)
def test_a_module_of_another_kind_is_refused_by_name(tmp_path: Path, add: dict[str, Tensor | None], words: str) -> None:
    checkpoint(tmp_path, "qwen")
    path = tmp_path / "model.safetensors"
    save_file({name: tensor for name, tensor in {**load_file(path), **add}.items() if tensor is not None}, path)
    with pytest.raises((InputError, UnsupportedError), match=words):
        read_published_mtp(tmp_path, target(), VOCAB)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["DeepseekV3ForCausalLM"]}, r"DeepseekV3ForCausalLM'\] is not implemented"),
        ({"architectures": ["Qwen3NextForCausalLM"]}, r"Qwen3NextForCausalLM'\] is not implemented"),
        ({"num_hidden_layers": 1}, "of another shape than the target"),
    ],
)
def test_a_trunk_that_is_not_the_targets_is_refused_by_name(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    checkpoint(tmp_path, "qwen")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises((InputError, UnsupportedError), match=words):
        MtpSource(TARGETS["torch"](), {"head": str(tmp_path)})


def test_an_eagle_head_drafts_as_the_head_it_was_made_of(tmp_path: Path) -> None:
    config = target()
    write_eagle(tmp_path, random_mtp(config, VOCAB), config)
    drafter = MtpSource(TARGETS["torch"](), {"head": str(tmp_path), "floor": 0.0}).open(0)
    drafter.observe(Commit((1, 2, 3), torch.randn(2, 32), 0))
    assert len(drafter.propose(Budget(6, 3, SamplingParams()))) == 6
    drafter.close()


def medusa(folder: Path, heads: int = 3, blocks: int = 2) -> dict[str, Tensor]:
    dice = torch.Generator().manual_seed(0)
    tensors = {f"{i}.{j}.linear.weight": torch.randn(32, 32, generator=dice) for i in range(heads) for j in range(blocks)}
    tensors |= {f"{i}.{j}.linear.bias": torch.randn(32, generator=dice) for i in range(heads) for j in range(blocks)}
    tensors |= {f"{i}.{blocks}.weight": torch.randn(VOCAB, 32, generator=dice) for i in range(heads)}
    save_file(tensors, folder / "medusa_lm_head.safetensors")
    (folder / "config.json").write_text(json.dumps({"medusa_num_heads": heads, "medusa_num_layers": blocks}))
    return tensors


def test_medusa_heads_bring_their_own_output_matrices(tmp_path: Path) -> None:
    tensors = medusa(tmp_path)
    head = read_published_medusa(tmp_path, target(), VOCAB)
    row = torch.randn(1, 32)
    for i, rows in enumerate(head.rows(row)):
        x = row
        for j in range(2):
            x = x + torch.nn.functional.silu(x @ tensors[f"{i}.{j}.linear.weight"].T + tensors[f"{i}.{j}.linear.bias"])
        assert torch.allclose(rows, x, atol=1e-4)
    source = MedusaSource(TARGETS["torch"](), {"head": str(tmp_path), "floor": 0.0})
    expected = torch.cat([rows @ tensors[f"{i}.2.weight"].T for i, rows in enumerate(head.rows(row))])
    assert torch.allclose(source.runner.logits(row[0], 0, 3), expected, atol=1e-3)


def test_pickled_medusa_heads_and_broken_ones_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UnsupportedError, match=r"has no medusa_lm_head.safetensors"):
        read_published_medusa(tmp_path, target(), VOCAB)
    (tmp_path / "medusa_lm_head.pt").write_bytes(b"")
    with pytest.raises(UnsupportedError, match=r"medusa_lm_head.pt: pickled weights are not read"):
        read_published_medusa(tmp_path, target(), VOCAB)
    medusa(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"medusa_num_heads": 10**9}))
    with pytest.raises(InputError, match="medusa_num_heads = 1000000000 is not allowed"):
        read_published_medusa(tmp_path, target(), VOCAB)
    (tmp_path / "config.json").write_text(json.dumps({"medusa_num_heads": 2, "medusa_num_layers": 2}))
    with pytest.raises(InputError, match="has unknown tensors"):
        read_published_medusa(tmp_path, target(), VOCAB)
