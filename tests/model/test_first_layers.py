"""The decoder of the first layers: that of a model which has no others, over the same memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.model.native_twin import random_decoder
from tests.model.slot_rows import SlotLine
from toolkit.errors import UsageError
from toolkit.model.attention import FullAttention
from toolkit.model.decoder import Decoder
from toolkit.model.native.decoder import NativeDecoder

TOKENS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])
PLACES = torch.arange(8)


def cut(decoder: Decoder, layers: int) -> Decoder:
    """A model of its own with these layers only."""
    return Decoder(
        replace(decoder.config, layers=layers),
        decoder.embedding.clone(),
        decoder.blocks[:layers],
        decoder.norm.clone(),
        decoder.head.weight.clone(),
    )


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_in_torch_they_give_what_the_model_without_the_rest_gives(layers: int) -> None:
    whole = random_decoder(layers=3)
    part, twin = whole.first(layers), cut(whole, layers)
    hidden = part.forward(TOKENS, PLACES, FullAttention())
    assert torch.equal(hidden, twin.forward(TOKENS, PLACES, FullAttention()))
    assert torch.equal(part.logits(hidden), twin.logits(hidden))
    assert part.embedding.data_ptr() == whole.embedding.data_ptr()
    assert part.head.weight.data_ptr() == whole.head.weight.data_ptr()
    assert part.config.layers == layers
    assert len(whole.blocks) == whole.config.layers == 3


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_natively_they_give_bit_for_bit_what_the_packed_model_without_the_rest_gives(layers: int, tied: bool) -> None:
    decoder = random_decoder(layers=3, tied=tied)
    whole = NativeDecoder(decoder)
    before = whole.nbytes
    part = whole.first(layers)
    twin = NativeDecoder(decoder.first(layers))
    order = list(range(8))
    hidden = part.forward(TOKENS, PLACES, SlotLine(part.config, order).grow(8))
    assert torch.equal(hidden, twin.forward(TOKENS, PLACES, SlotLine(twin.config, order).grow(8)))
    assert torch.equal(part.logits(hidden), twin.logits(hidden))
    assert part.nbytes == twin.nbytes
    assert whole.nbytes == before
    del whole, decoder
    again = part.forward(TOKENS, PLACES, SlotLine(part.config, order).grow(8))  # its weights outlive the whole
    assert torch.equal(hidden, again)


def test_the_whole_model_is_unchanged_by_its_parts() -> None:
    whole = NativeDecoder(random_decoder(layers=3))
    order = list(range(8))
    before = whole.forward(TOKENS, PLACES, SlotLine(whole.config, order).grow(8))
    part = whole.first(1)
    part.forward(TOKENS, PLACES, SlotLine(part.config, order).grow(8))
    assert torch.equal(before, whole.forward(TOKENS, PLACES, SlotLine(whole.config, order).grow(8)))


@pytest.mark.parametrize("layers", [0, 4, -1])
def test_layers_that_are_not_there_are_refused(layers: int) -> None:
    decoder = random_decoder(layers=3)
    for one in (decoder, NativeDecoder(decoder)):
        with pytest.raises(UsageError, match="layers"):
            one.first(layers)
