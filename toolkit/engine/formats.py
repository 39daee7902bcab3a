"""Formats: in which numbers the embedded engine computes, "auto", "int8" or "int4" (native), or "float32" (torch).

In: a torch decoder as loaded and the option.   Out: the decoder that runs.
Knows nothing about: files, passes. Only "auto" may fall back, and says so once.
"""

from __future__ import annotations

import logging
from functools import cache

import torch

from toolkit.errors import UnsupportedError, UsageError
from toolkit.model.config import ModelConfig
from toolkit.model.decoder import Decoder
from toolkit.model.native.decoder import NativeDecoder, refusal
from toolkit.model.native.library import missing

FORMATS = ("auto", "int8", "int4", "float32")
_BITS = {"int8": 8, "int4": 4}  # of weights; activations have 14


def formatted(decoder: Decoder, name: str) -> Decoder | NativeDecoder:
    """The decoder in that format. "auto" is int8 where the native path runs this model, else the decoder itself."""
    if name not in FORMATS:
        raise UsageError(f"format = {name!r} is not allowed: {', '.join(FORMATS)}")
    if name in _BITS:
        return NativeDecoder(decoder, bits=_BITS[name])
    if name == "float32":
        if decoder.dtype != torch.float32:
            raise UnsupportedError(f'format="float32" contradicts dtype {decoder.dtype}', hint='format="auto"')
        return decoder
    return NativeDecoder(decoder) if is_native(decoder.config, decoder.device, decoder.dtype, name) else decoder


def is_native(config: ModelConfig, device: torch.device, dtype: torch.dtype, name: str) -> bool:
    """Whether a model of that kind runs natively: where it was asked for and can, or by itself where "auto" decides."""
    if name not in FORMATS:
        raise UsageError(f"format = {name!r} is not allowed: {', '.join(FORMATS)}")
    why = refusal(config, device, dtype, bits_of(name)) or missing()
    if name == "auto" and device.type == "cpu" and dtype == torch.float32 and why is not None:
        _tell(why)
    return why is None and name != "float32"


def bits_of(name: str) -> int:
    """Of the weights of a native format."""
    return _BITS.get(name, 8)


@cache
def _tell(why: str) -> None:
    logging.getLogger(__name__).warning("running float32 in torch, several times slower than native int8: %s", why)
