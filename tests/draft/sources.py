"""Targets and every source of the drafter table, built on small random models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.draft.heads import medusa_folder, mtp_folder
from tests.model.native_twin import random_decoder
from toolkit.draft.contract import DRAFTERS, Source, Target
from toolkit.model.native.decoder import NativeDecoder
from toolkit.model.tiny import tiny_model
from toolkit.text.tokenizer import ByteTokenizer


@cache
def torch_target() -> Target:
    """The tiny model in torch, byte tokenizer."""
    decoder = tiny_model(layers=3)
    return Target(decoder, lambda: decoder, ByteTokenizer(), "tiny", "tiny", ByteTokenizer().vocab_size)


@cache
def native_target() -> Target:
    """A random model that the kernels take, padded vocabulary."""
    decoder = random_decoder(layers=4, vocab_size=264, context=512)
    return Target(NativeDecoder(decoder), lambda: decoder, ByteTokenizer(), "random", "random", ByteTokenizer().vocab_size)


TARGETS: Mapping[str, Callable[[], Target]] = {"torch": torch_target, "native": native_target}
# Options that a row is also run with; every row is run without any.
OPTIONS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "ngram": ({"min_match": 1, "width": 1, "floor": 0.01}, {"width": 8, "floor": 0.0}),
    "model": ({"width": 1, "floor": 0.0}, {"draw": True, "width": 1, "floor": 0.0}, {"draw": True, "width": 3, "floor": 0.0}),
    "medusa": ({"width": 1, "floor": 0.0}, {"draw": True}),
    "mtp": ({"width": 1, "floor": 0.0}, {"draw": True, "width": 1, "floor": 0.0}, {"draw": True, "width": 3, "floor": 0.0}),
    "ngram+mtp": ({"fill": True},),
}
HEADS: Mapping[str, Callable[[str, Target], Path]] = {"mtp": mtp_folder, "medusa": medusa_folder}


def options_of(name: str) -> tuple[Mapping[str, Any], ...]:
    return ({}, *OPTIONS.get(name, ()))


def build(name: str, target: Target, options: Mapping[str, Any]) -> Source:
    """A source of the table; one that needs a head gets a random one."""
    source: Source = DRAFTERS.load(name)(target, {**_heads(name, target), **options})
    return source


def _heads(name: str, target: Target) -> Mapping[str, Any]:
    if name in HEADS:
        return {"head": str(HEADS[name](target.model, target))}
    return {part: {"head": str(HEADS[part](target.model, target))} for part in name.split("+") if part in HEADS}
