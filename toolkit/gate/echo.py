"""Echo model: a decoder that copies what its prompt begins with, by attention alone - a model that writes valid JSON without a mask.

    prompt   <|user|> document <|end|> <|user|>     it goes on with: document <|end|>

Layer 0 fetches the codes of the OFFSETS tokens before each token, by position. Layer 1 looks for the place whose last tokens are
the row's own (the nearest weigh most) and gives the token that stood there: an induction head. All it knows of its context is in
the keys and values, so a stale key, a lost token or a wrong branch makes it lose its place as it does a real model.
In, out: as a Decoder. Knows nothing about: JSON.
Invariants: a document in which every OFFSETS tokens in a row are distinct is copied exactly (`is_clear`).
Source: induction heads (Olsson et al. 2209.11895), weights written by hand.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from toolkit.model.attention import KVView
from toolkit.model.decoder import Decoder
from toolkit.model.tiny import BYTE_VOCABULARY, tiny_model

OPEN, END = 258, 256  # <|user|>, <|end|> of the byte tokenizer
OFFSETS = 4
CODE = 16  # dimensions of a token's code; a head holds OFFSETS of them
_SHARP = 20.0  # nats a unit of likeness
_WEIGHTS = (8.0, 4.0, 2.0, 1.0)


def is_clear(document: Sequence[int]) -> bool:
    """Whether no OFFSETS tokens in a row come twice, so that each place of a copy has one continuation."""
    whole = [OPEN, *document, END]
    grams = [tuple(whole[i : i + OFFSETS]) for i in range(len(whole) - OFFSETS + 1)]
    return len(set(grams)) == len(grams)


def prompt_of(document: Sequence[int]) -> list[int]:
    """A prompt that is answered with the document."""
    return [OPEN, *document, END, OPEN]


class EchoDecoder(Decoder):
    """Two layers, OFFSETS heads of OFFSETS * CODE dimensions; hidden rows [T, D] hold the code of the next token first."""

    def __init__(self, context: int = 1024) -> None:
        base = tiny_model(hidden_size=OFFSETS * OFFSETS * CODE, layers=2, heads=OFFSETS, kv_heads=OFFSETS, context=context)
        super().__init__(base.config, base.embedding, base.blocks, base.norm, base.head.weight)
        random = torch.Generator().manual_seed(0)
        self._codes = _units(BYTE_VOCABULARY, CODE, random)
        self._places = _units(context, OFFSETS * CODE, random)

    def forward(self, tokens: Tensor, positions: Tensor, kv: KVView) -> Tensor:
        """Hidden rows [T, D]."""
        rows, width = len(tokens), OFFSETS * CODE
        code = self._codes[tokens]  # [T, CODE]
        scale = width**0.5
        back = positions[:, None] - torch.arange(1, OFFSETS + 1)  # [T, offset]
        before = self._places[back.clamp(min=0)]
        here = self._places[positions][:, None].expand(-1, OFFSETS, -1)
        value = torch.zeros(rows, OFFSETS, width)
        value[:, :, :CODE] = code[:, None]
        found = kv.attend(0, before * (scale * 10 * _SHARP), here, value)[:, :, :CODE]
        found = found * (back >= 0)[:, :, None]  # [T, offset, CODE]; before the first token there is nothing
        weights = torch.tensor(_WEIGHTS)[:, None]
        own = torch.cat((code[:, None], found[:, :-1]), 1) * weights
        query, key = torch.zeros(rows, OFFSETS, width), torch.zeros(rows, OFFSETS, width)
        query[:, 0], key[:, 0] = own.flatten(1) * (scale * _SHARP), found.flatten(1)
        hidden = torch.zeros(rows, self.config.hidden_size)
        hidden[:, :CODE] = kv.attend(1, query, key, value)[:, 0, :CODE]
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, V]."""
        return hidden[:, :CODE] @ self._codes.T * _SHARP


def _units(count: int, width: int, random: torch.Generator) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(count, width, generator=random), dim=-1)
