"""The packed form on disk: what is read back is what was packed, and anything else is made anew."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from toolkit.model.native.decoder import NativeDecoder
from toolkit.model.native.library import missing
from toolkit.model.native.packed import PackedModel, pack_model
from toolkit.model.native.packed_file import load_packed, save_packed
from toolkit.model.tiny import tiny_model

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"the native path is not there: {missing()}")


def tensors(model: PackedModel) -> list[torch.Tensor]:
    matrices = [*(matrix for layer in model.layers for matrix in layer.matrices), model.head, model.embedding]
    norms = [norm for norms in (*(layer.norms for layer in model.layers), (model.norm,)) for norm in norms if norm is not None]
    biases = [matrix.bias for matrix in matrices if matrix.bias is not None]
    return [*(m.tiles for m in matrices), *(m.scale for m in matrices), *biases, *norms]


@pytest.fixture(params=[8, 4])
def packed(request: pytest.FixtureRequest) -> PackedModel:
    return pack_model(tiny_model(), request.param)


def test_a_packed_model_is_read_back_bit_for_bit(packed: PackedModel, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "model.safetensors"
    assert save_packed(path, packed, "mark")
    again = load_packed(path, packed.config, "mark", packed.bits)
    assert again is not None and again.bits == packed.bits
    assert load_packed(path, packed.config, "mark", 12 - packed.bits) is None
    assert (again.head is again.embedding) == (packed.head is packed.embedding)
    for one, two in zip(tensors(packed), tensors(again), strict=True):
        assert torch.equal(one, two)
    assert [item.name for item in path.parent.iterdir()] == [path.name]
    hidden = torch.randn(3, packed.config.hidden_size, generator=torch.Generator().manual_seed(0))
    assert torch.equal(NativeDecoder(packed).logits(hidden), NativeDecoder(again).logits(hidden))


def test_another_fingerprint_config_or_a_damaged_file_is_not_read(packed: PackedModel, tmp_path: Path) -> None:
    from dataclasses import replace

    path = tmp_path / "model.safetensors"
    assert load_packed(path, packed.config, "mark", packed.bits) is None
    assert save_packed(path, packed, "mark")
    assert load_packed(path, packed.config, "other", packed.bits) is None
    assert load_packed(path, replace(packed.config, layers=packed.config.layers + 1), "mark", packed.bits) is None
    assert load_packed(path, replace(packed.config, layers=packed.config.layers - 1), "mark", packed.bits) is None
    assert load_packed(path, replace(packed.config, qk_norm=not packed.config.qk_norm), "mark", packed.bits) is None
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[: len(whole) // 2], b"", b"\xff" * 64):
        path.write_bytes(damaged)
        assert load_packed(path, packed.config, "mark", packed.bits) is None


def test_scales_that_are_no_numbers_are_refused(packed: PackedModel, tmp_path: Path) -> None:
    packed.head.scale[0] = float("nan")
    path = tmp_path / "model.safetensors"
    assert save_packed(path, packed, "mark") and load_packed(path, packed.config, "mark", packed.bits) is None
    packed.head.scale[0] = 1.0
    if packed.bits == 4:
        packed.layers[1].down.tiles[0, 1, 2:4] = torch.tensor([0, 0x7C], dtype=torch.int8)  # a step that is infinite
        assert save_packed(path, packed, "mark") and load_packed(path, packed.config, "mark", 4) is None


def test_a_folder_that_cannot_be_written_leaves_no_file_and_says_so(packed: PackedModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not save_packed(tmp_path / "file" / "model.safetensors", packed, "mark")
