"""serve --drafter mtp: a model without such layers is refused by name before anything starts; what may have them is left to SGLang."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolkit.errors import UnsupportedError
from toolkit.lang.launch import launch
from toolkit.lang.presets import Speculation


def model(folder: Path, config: object, *tensors: str) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    header = json.dumps({name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for name in tensors}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return str(folder)


@pytest.mark.parametrize("config", [{"architectures": ["LlamaForCausalLM"]}, {"num_nextn_predict_layers": 0}, {"text_config": {"mtp_layers": None}}])  # fmt: skip
@pytest.mark.parametrize("preset", ["mtp", "nextn"])
def test_a_model_without_such_layers_is_refused_by_name(tmp_path: Path, preset: str, config: object) -> None:
    folder = model(tmp_path, config, "model.layers.0.mlp.up_proj.weight")
    with pytest.raises(UnsupportedError, match="holds no multi-token-prediction layers") as caught:
        launch(folder, Speculation(preset=preset), device="cpu")
    assert str(tmp_path) in caught.value.message and "ngram" in caught.value.hint
    launch(folder, Speculation(preset="ngram"), device="cpu")
    launch(folder, Speculation(preset=preset, draft=folder), device="cpu")


@pytest.mark.parametrize(
    ("config", "tensor"),
    [
        ({"num_nextn_predict_layers": 1}, "a"),
        ({"text_config": {"mtp_num_hidden_layers": 1}}, "a"),
        ({}, "mtp.layers.0.norm.weight"),
    ],
)
def test_a_model_that_speaks_of_such_layers_is_started(tmp_path: Path, config: object, tensor: str) -> None:
    assert "NEXTN" in launch(model(tmp_path, config, tensor), Speculation(preset="mtp"), device="cpu").command


def test_an_index_names_the_tensors_and_what_cannot_be_read_is_left_to_the_server(tmp_path: Path) -> None:
    folder = model(tmp_path, {}, "mtp.norm")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"lm_head.weight": "x"}}')
    with pytest.raises(UnsupportedError):
        launch(folder, Speculation(preset="mtp"), device="cpu")
    (tmp_path / "model.safetensors.index.json").write_text("[" * 100_000)
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    launch(folder, Speculation(preset="mtp"), device="cpu")
    (tmp_path / "model.safetensors").unlink()
    launch(folder, Speculation(preset="mtp"), device="cpu")
