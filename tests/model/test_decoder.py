from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.model.contiguous import Contiguous
from tests.model.hf_reference import transformers
from toolkit.errors import InputError, UnsupportedError, UsageError
from toolkit.model.attention import FullAttention
from toolkit.model.tiny import tiny_model
from toolkit.model.weights import load_model

SMALL: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
    "intermediate_size": 80, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-biased": ("Llama", {"attention_bias": True}),
    "llama3-rope": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-wide-heads": ("Llama", {"head_dim": 16}),
    "qwen2": ("Qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen3": ("Qwen3", {"head_dim": 12, "tie_word_embeddings": True}),
    "qwen3-biased": ("Qwen3", {"head_dim": 12, "attention_bias": True}),
}


def save(folder: Path, name: str, **options: Any) -> Any:
    """A random transformers model, its norms and biases moved off their neutral values, saved to `folder`."""
    kind, changes = MODELS[name]
    library = transformers()
    torch.manual_seed(1)
    model = getattr(library, f"{kind}ForCausalLM")(getattr(library, f"{kind}Config")(**SMALL | changes)).eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            value.copy_(torch.randn_like(value) * (0.3 if value.dim() > 1 else 0.2) + (1.0 if "norm" in key else 0.0))
    model.save_pretrained(folder, **options)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    theirs, ours = save(tmp_path, name), load_model(tmp_path)
    tokens = torch.randint(0, SMALL["vocab_size"], (150,), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = theirs(tokens[None]).logits[0]
    positions = torch.arange(len(tokens))
    torch.testing.assert_close(ours.logits(ours.forward(tokens, positions, FullAttention())), expected, atol=1e-4, rtol=1e-4)


def test_a_sharded_folder_gives_the_same_model(tmp_path: Path) -> None:
    save(tmp_path / "one", "qwen2")
    save(tmp_path / "many", "qwen2", max_shard_size="20KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    one, many = load_model(tmp_path / "one"), load_model(tmp_path / "many")
    assert torch.equal(one.blocks[2].qkv.weight, many.blocks[2].qkv.weight)
    assert torch.equal(one.head.weight, many.head.weight)


def test_rows_in_several_passes_equal_rows_in_one_pass() -> None:
    model = tiny_model()
    tokens, positions = torch.arange(40) * 5 % 256, torch.arange(40)
    whole = model.logits(model.forward(tokens, positions, FullAttention()))
    cache = Contiguous(model.config.layers)
    parts = [model.forward(tokens[a:b], positions[a:b], cache) for a, b in ((0, 17), (17, 18), (18, 40))]
    torch.testing.assert_close(model.logits(torch.cat(parts)), whole, atol=1e-5, rtol=1e-5)


def test_a_row_never_sees_a_later_row() -> None:
    model = tiny_model()
    tokens, positions = torch.arange(12), torch.arange(12)
    before = model.forward(tokens, positions, FullAttention())
    tokens[7:] = 99
    after = model.forward(tokens, positions, FullAttention())
    assert torch.equal(before[:7], after[:7])
    assert not torch.equal(before[7], after[7])


def test_a_pass_writes_no_weight_and_gradients_may_pass_its_outputs() -> None:
    model = tiny_model()
    before = model.embedding.clone(), model.blocks[0].qkv.weight.clone()
    hidden = model.forward(torch.arange(5), torch.arange(5), FullAttention())
    assert torch.equal(before[0], model.embedding)
    assert torch.equal(before[1], model.blocks[0].qkv.weight)
    head = torch.zeros(3, 32, requires_grad=True)
    (hidden @ head.T).sum().backward()
    assert head.grad is not None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_near_float32_and_gives_float32_logits(dtype: str, tmp_path: Path) -> None:
    save(tmp_path, "qwen3")
    full, half = load_model(tmp_path), load_model(tmp_path, dtype=dtype)
    tokens, positions = torch.arange(20), torch.arange(20)
    a, b = (model.logits(model.forward(tokens, positions, FullAttention())) for model in (full, half))
    assert (half.dtype, b.dtype) == (getattr(torch, dtype), torch.float32)
    assert torch.nn.functional.cosine_similarity(a, b).min() > 0.99


def test_the_tiny_model_is_the_same_every_time_and_its_greedy_text_is_not_degenerate() -> None:
    model, again, other = tiny_model(), tiny_model(), tiny_model(1)
    assert torch.equal(model.head.weight, again.head.weight)
    assert not torch.equal(model.head.weight, other.head.weight)
    cache, tokens, text = Contiguous(model.config.layers), torch.arange(65, 70), []
    for step in range(60):
        start = 5 + step - len(tokens) if step else 0
        hidden = model.forward(tokens, torch.arange(start, start + len(tokens)), cache)
        tokens = model.logits(hidden[-1:]).argmax(-1)
        text.append(int(tokens))
    assert len(set(text)) > 5


def test_a_damaged_folder_is_refused_by_name(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save(tmp_path, "llama")
    path = tmp_path / "model.safetensors"
    good = load_file(path)
    name = "model.layers.1.mlp.up_proj.weight"
    for change, words in (
        ({name: None}, f"lacks 1 tensors: {name}"),
        ({"extra.weight": torch.zeros(2)}, r"unexpected 1 tensors: extra\.weight"),
        ({name: torch.zeros(80, 47)}, r"up_proj.*\[80, 47\].*\[80, 48\]"),
    ):
        save_file({key: value for key, value in (good | change).items() if value is not None}, path)
        with pytest.raises(InputError, match=words):
            load_model(tmp_path)
    save_file(good | {name: torch.zeros(80, 48, dtype=torch.int8)}, path)
    with pytest.raises(UnsupportedError, match=r"up_proj.*int8"):
        load_model(tmp_path)
    save_file(good | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}, path)
    load_model(tmp_path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(InputError, match=r"model\.safetensors"):
        load_model(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match="neither"):
        load_model(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UnsupportedError, match=r"pytorch_model\.bin.*pickled"):
        load_model(tmp_path)
    with pytest.raises(UsageError, match=r"float64.*float32"):
        load_model(tmp_path, dtype="float64")


def test_a_tied_head_that_differs_from_the_embedding_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save(tmp_path, "llama-tied")
    path = tmp_path / "model.safetensors"
    good = load_file(path)
    head = good["model.embed_tokens.weight"].clone()
    save_file(good | {"lm_head.weight": head}, path)
    load_model(tmp_path)
    save_file(good | {"lm_head.weight": head + 1}, path)
    with pytest.raises(InputError, match="differs"):
        load_model(tmp_path)


def test_an_index_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    save(tmp_path, "llama")
    for name in ("../model.safetensors", "/etc/passwd", "weights.bin", "sub/x.safetensors"):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}), encoding="utf-8")
        with pytest.raises(InputError, match="weight_map"):
            load_model(tmp_path)
