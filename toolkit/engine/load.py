"""Load: a model's name or path -> the decoder that runs, its tokenizer, its fingerprint.

A model that runs natively is read in its packed form where one was kept from an earlier start; float32 weights are then not
touched at all. Otherwise they are loaded, packed, and the packed form is kept for the next time.
Knows nothing about: passes, requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from toolkit.contracts import Tokenizer
from toolkit.engine.formats import bits_of, formatted, is_native
from toolkit.errors import EngineError, UnsupportedError
from toolkit.model.config import ModelConfig
from toolkit.model.decoder import Decoder
from toolkit.model.fingerprint import fingerprint
from toolkit.model.layout import read_config
from toolkit.model.native.decoder import NativeDecoder
from toolkit.model.native.library import trim
from toolkit.model.native.packed_file import LAYOUT, load_packed, save_packed
from toolkit.model.store import models_folder, resolve
from toolkit.model.tiny import tiny_model
from toolkit.model.weights import DTYPES, load_model
from toolkit.text.tokenizer import ByteTokenizer, load_tokenizer

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """`torch` loads the model's torch form, for whoever needs its float weights once."""

    decoder: Decoder | NativeDecoder
    tokenizer: Tokenizer
    mark: str
    torch: Callable[[], Decoder]


def load(model: str | Path, *, device: str, dtype: str, format: str) -> Loaded:  # noqa: A002 - the word users know
    """See EmbeddedEngine for the options."""
    if str(model) == "tiny":
        if device != "cpu":
            raise UnsupportedError(f'the model "tiny" runs on the CPU, not on {device!r}')
        again = partial(tiny_model, dtype=DTYPES[dtype])
        return Loaded(formatted(again(), format), ByteTokenizer(), "tiny", again)
    folder = resolve(str(model))
    config, tokenizer, mark = read_config(folder), load_tokenizer(folder), fingerprint(folder)
    if tokenizer.vocab_size > config.vocab_size:
        raise EngineError(f"the tokenizer of {folder} has {tokenizer.vocab_size} tokens, its model only {config.vocab_size}")
    again = partial(load_model, folder, device=device, dtype=dtype)
    if is_native(config, torch.device(device), DTYPES[dtype], format):
        return Loaded(_native(again, config, mark, bits_of(format)), tokenizer, mark, again)
    return Loaded(formatted(again(), format), tokenizer, mark, again)


def _native(again: Callable[[], Decoder], config: ModelConfig, mark: str, bits: int) -> NativeDecoder:
    name = f"{mark}-{LAYOUT}.safetensors" if bits == 8 else f"{mark}-{LAYOUT}-{bits}bit.safetensors"
    path = models_folder().parent / "packed" / name
    kept = load_packed(path, config, mark, bits)
    if kept is not None:
        return NativeDecoder(kept)
    decoder = NativeDecoder(again(), bits=bits)
    trim()
    if not save_packed(path, decoder.packed, mark):
        _LOG.warning("the packed model could not be kept in %s: every start packs it again", path.parent)
    return decoder
