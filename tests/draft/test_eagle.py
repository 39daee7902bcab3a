"""EAGLE-1's layout: what is written is read back, what it cannot express is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.draft.heads import random_mtp
from tests.draft.sources import TARGETS
from toolkit.draft.eagle import read_eagle, write_eagle
from toolkit.draft.mtp_file import weights_of
from toolkit.errors import InputError, UnsupportedError
from toolkit.model.config import ModelConfig

VOCAB = 261


@pytest.fixture
def target() -> ModelConfig:
    return TARGETS["torch"]().decoder.config


def test_a_head_that_is_written_is_read_back_weight_by_weight(tmp_path: Path, target: ModelConfig) -> None:
    head = random_mtp(target, VOCAB)
    write_eagle(tmp_path, head, target)
    again = read_eagle(tmp_path, target, VOCAB)
    one, other = weights_of(head), weights_of(again)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert again.ids.tolist() == list(range(VOCAB))  # any token can be guessed
    assert again.config.rope_theta == target.rope_theta and again.config.heads == target.heads


def test_the_draft_is_never_tied_for_sglang_frees_embedding_and_head_one_by_one(tmp_path: Path, target: ModelConfig) -> None:
    write_eagle(tmp_path, random_mtp(target, VOCAB), target)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle"] and config["tie_word_embeddings"] is False


@pytest.mark.parametrize("norm", ["attention_norm", "embed_norm", "hidden_norm", "norm"])
def test_a_head_with_norms_of_its_own_is_not_exported(tmp_path: Path, target: ModelConfig, norm: str) -> None:
    with pytest.raises(UnsupportedError, match=f"no {norm}: this head cannot be exported exactly"):
        write_eagle(tmp_path, random_mtp(target, VOCAB, norms=[norm]), target)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"]}, UnsupportedError, "is no EAGLE-1 head"),
        ({"model_type": "qwen2"}, UnsupportedError, "is no EAGLE-1 head"),
        ({"num_hidden_layers": 2}, UnsupportedError, "of 2 layers"),
        ({"attention_bias": True}, UnsupportedError, "with attention biases"),
        ({"vocab_size": 300}, InputError, "over 300 tokens, the target 32 over 261"),
        ({"hidden_size": "wide"}, InputError, "hidden_size"),
        ({"num_attention_heads": 8, "head_dim": 4}, InputError, "has shape|lacks"),
    ],
)
def test_a_draft_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, target: ModelConfig, change: dict[str, Any], kind: type[Exception], words: str
) -> None:
    write_eagle(tmp_path, random_mtp(target, VOCAB), target)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    if change.get("num_attention_heads"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"num_key_value_heads": 8}))
    with pytest.raises(kind, match=words):
        read_eagle(tmp_path, target, VOCAB)
