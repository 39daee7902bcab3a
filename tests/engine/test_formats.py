"""Which numbers the engine computes in: what "auto" takes, what the others refuse, and that a fall-back is told once."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from tests.model.native_twin import random_decoder
from toolkit.engine import formats, load
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.formats import formatted
from toolkit.errors import UnsupportedError, UsageError
from toolkit.model.decoder import Decoder
from toolkit.model.native.decoder import NativeDecoder
from toolkit.model.native.library import missing
from toolkit.model.tiny import tiny_model

native = pytest.mark.skipif(missing() is not None, reason=f"no native path: {missing()}")


@native
def test_auto_is_native_int8_where_the_kernels_take_the_model() -> None:
    assert isinstance(formatted(random_decoder(), "auto"), NativeDecoder)
    with EmbeddedEngine("tiny") as engine:
        assert engine.format.startswith("int8 (")


def test_float32_is_the_torch_decoder_itself() -> None:
    decoder = random_decoder()
    assert formatted(decoder, "float32") is decoder
    with EmbeddedEngine("tiny", format="float32") as engine:
        assert engine.format == "float32"


def test_another_dtype_runs_in_torch_without_a_note(caplog: pytest.LogCaptureFixture) -> None:
    decoder = tiny_model(dtype=torch.bfloat16)
    assert formatted(decoder, "auto") is decoder and not caplog.records
    with EmbeddedEngine("tiny", dtype="bfloat16") as engine:
        assert engine.format == "bfloat16"


def test_auto_falls_back_to_torch_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    formats._tell.cache_clear()
    decoder: Decoder = random_decoder(head_dim=12)
    with caplog.at_level(logging.WARNING):
        assert formatted(decoder, "auto") is decoder
        assert formatted(decoder, "auto") is decoder
    (record,) = caplog.records
    assert "head_dim = 12 is no multiple of 8" in record.getMessage()


def test_auto_without_the_compiled_part_runs_in_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(formats, "missing", lambda: "it was not compiled (for this test)")
    decoder = random_decoder()
    with caplog.at_level(logging.WARNING):
        assert formatted(decoder, "auto") is decoder
    assert "not compiled" in caplog.text


def test_int8_refuses_what_it_cannot_run_and_unknown_formats_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="head_dim = 12"):
        formatted(random_decoder(head_dim=12), "int8")
    with pytest.raises(UnsupportedError, match="bfloat16"):
        EmbeddedEngine("tiny", dtype="bfloat16", format="int8")
    with pytest.raises(UnsupportedError, match="contradicts dtype"):
        EmbeddedEngine("tiny", dtype="bfloat16", format="float32")
    with pytest.raises(UnsupportedError, match=r"int4 path .* hidden_size = 48 is no multiple of 32"):
        formatted(random_decoder(), "int4")
    with pytest.raises(UsageError, match=r"'int3' is not allowed: auto, int8, int4, float32"):
        EmbeddedEngine("tiny", format="int3")


@native
def test_int4_runs_natively_and_its_packed_weights_are_kept_apart_from_those_of_int8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedEngine("tiny", format="int4") as engine:
        assert engine.format.startswith("int4 (")
    monkeypatch.setattr(load, "models_folder", lambda: tmp_path / "models")
    model = tiny_model()
    hidden = torch.randn(3, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    fresh = {bits: load._native(lambda: model, model.config, "mark", bits) for bits in (8, 4)}
    kept = {bits: load._native(lambda: pytest.fail("packed again"), model.config, "mark", bits) for bits in (8, 4)}
    assert [kept[bits].format for bits in (8, 4)] == ["int8", "int4"]
    for bits in (8, 4):
        assert torch.equal(kept[bits].packed.layers[0].down.tiles, fresh[bits].packed.layers[0].down.tiles)
        assert torch.equal(kept[bits].logits(hidden), fresh[bits].logits(hidden))
    assert kept[4].bytes_read < kept[8].bytes_read
