from __future__ import annotations

from typing import Any

import pytest

from toolkit.errors import InputError, UnsupportedError
from toolkit.model.config import ModelConfig, RopeScaling

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 500000.0, "hidden_act": "silu",
}  # fmt: skip
ROPE = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip


def test_both_spellings_of_rope_read_the_same() -> None:
    old = ModelConfig.from_hf(LLAMA | {"rope_scaling": ROPE})
    new = ModelConfig.from_hf(
        {k: v for k, v in LLAMA.items() if k != "rope_theta"} | {"rope_parameters": ROPE | {"rope_theta": 500000.0}}
    )
    assert old == new
    assert old.rope_scaling == RopeScaling(8.0, 1.0, 4.0, 8192)
    assert ModelConfig.from_hf(LLAMA | {"rope_scaling": None}).rope_scaling is None


def test_each_architecture_has_its_own_biases_and_norms() -> None:
    qwen2 = ModelConfig.from_hf(LLAMA | {"architectures": ["Qwen2ForCausalLM"]})
    qwen3 = ModelConfig.from_hf(LLAMA | {"architectures": ["Qwen3ForCausalLM"], "head_dim": 32})
    biased = ModelConfig.from_hf(LLAMA | {"attention_bias": True})
    assert (qwen2.qkv_bias, qwen2.o_bias, qwen2.qk_norm) == (True, False, False)
    assert (qwen3.qkv_bias, qwen3.o_bias, qwen3.qk_norm, qwen3.head_dim) == (False, False, True, 32)
    assert (biased.qkv_bias, biased.o_bias, biased.qk_norm) == (True, True, False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM.*LlamaForCausalLM"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "Qwen3MoeForCausalLM"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"architectures": None, "model_type": "gemma"}, "gemma"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"hidden_act": "gelu"}, "hidden_act.*gelu.*silu"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config.*gptq"),
        ({"num_experts": 8}, "num_experts"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "linear"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        ModelConfig.from_hf(LLAMA | change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 0}, "hidden_size = 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"vocab_size": "many"}, "vocab_size = many"),
        ({"num_key_value_heads": 3}, "multiple"),
        ({"hidden_size": 66}, "multiple"),
        ({"head_dim": 7}, "head_dim = 7"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rope_theta": -1}, "rope_theta"),
        ({"rope_theta": 10**400}, "rope_theta"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"rope_scaling": 3}, "must be an object"),
        ({"rope_scaling": ROPE | {"high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"layer_types": 7}, "layer_types"),
        ({"rope_scaling": ROPE | {"factor": None}}, "factor = None"),
        ({"architectures": ["Qwen3ForCausalLM"]}, "head_dim is missing"),
        ({"architectures": ["Qwen2ForCausalLM"], "rope_theta": None}, "rope_theta"),
    ],
)
def test_a_malformed_config_is_refused_by_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        ModelConfig.from_hf(LLAMA | change)
