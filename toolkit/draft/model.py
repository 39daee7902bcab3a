"""ModelDrafter: a smaller model writes ahead - another one with the same tokenizer, or the first layers of the target itself.

In: the text.   Out: the model's likeliest continuations as a tree, or drawn ones with their q.
The drafter keeps KV of its own: what was drafted and then committed is not computed again, the rest is cut off.
Knows nothing about: how trees are verified, other sequences.
Invariants: `_lines` holds, per drafted path behind the `_base` first tokens of the text, the table that ends with it; each
table is listed once, so closing gives every block back.
Source: 2211.17192; an early exit with the target's own norm and head as in 2404.16710 (untrained here: it guesses worse);
the early exit shares the target's weights in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from toolkit.draft.cache import DraftCache
from toolkit.draft.contract import Budget, Chances, Commit, Cost, Target
from toolkit.draft.grow import Node, drawn, likely
from toolkit.draft.options import Options
from toolkit.draft.tree import EMPTY, MOST_NODES, DraftTree
from toolkit.errors import UnsupportedError, UsageError
from toolkit.kv.table import BlockTable
from toolkit.model.config import ModelConfig
from toolkit.model.decoder import Decoder
from toolkit.model.native.decoder import NativeDecoder
from toolkit.sample.draw import generator

CHUNK = 256  # tokens of a prompt in one pass
KV_TOKENS = 1 << 15  # room for all sequences together; zeroed pages cost memory only once written
MOST_KV_TOKENS = 1 << 22


class ModelSource:
    """Options: model (name or path, "" = the target's own first layers), layers (how many of them, default two thirds),
    width (most children of a node, 4; 1 = chain), floor (least joint probability, .05), draw (draw from the model at the
    request's temperature instead of taking its likeliest tokens, False), kv_tokens (room for all sequences together).
    """

    name = "model"
    needs_hidden = False
    lossy = False
    chances: Chances = "none"

    def __init__(self, target: Target, options: Mapping[str, Any]) -> None:
        given = Options(self.name, options)
        model = given.text("model")
        whole = target.decoder.config.layers
        if "layers" in options and model:
            raise UsageError("drafter 'model' takes the option 'layers' or the option 'model', not both")
        if whole < 2 and not model:
            raise UnsupportedError(f"{target.model} has {whole} layer: it has no early exit", hint='give a "model"')
        layers = given.count("layers", max(1, whole * 2 // 3), 1, max(1, whole - 1))
        self.width = given.count("width", 4, 1, MOST_NODES)
        self.floor = given.share("floor", 0.05)
        self.draw = given.flag("draw", False)
        tokens = given.count("kv_tokens", KV_TOKENS, CHUNK, MOST_KV_TOKENS)
        given.end()
        decoder = _load(model, target) if model else target.decoder.first(layers)
        self.cost = _cost(decoder)
        self.cache = DraftCache(decoder, target.vocab_size, tokens)

    def open(self, seed: int) -> ModelDrafter:
        """A drafter for one sequence; the seed decides its draws."""
        return ModelDrafter(self.cache, width=self.width, floor=self.floor, random=generator(seed) if self.draw else None)


class ModelDrafter:
    """One sequence. random: what to draw with, None = the likeliest tokens."""

    def __init__(self, cache: DraftCache, *, width: int, floor: float, random: torch.Generator | None) -> None:
        self._cache = cache
        self._width, self._floor, self._random = width, floor, random
        self._text: list[int] = []
        self._base = 0  # leading tokens of the text that every line holds
        self._lines: dict[tuple[int, ...], BlockTable] = {(): cache.table()}

    def observe(self, commit: Commit) -> None:
        """The text grows; the cache follows at the next proposal, so that one pass does for both."""
        self._text += commit.tokens

    def propose(self, budget: Budget) -> DraftTree:
        """A tree within the budget and the draft model's context."""
        depth = min(budget.depth, self._cache.context - len(self._text) + 1)  # the deepest nodes are not computed
        if depth < 1 or budget.nodes < 1 or not self._text:
            return EMPTY
        budget = replace(budget, depth=depth)
        self._settle()
        root = self._catch_up()
        if self._random is not None and budget.sampling.temperature > 0.0:
            return drawn(root, self._expand, budget, self._random, width=self._width, floor=self._floor)
        return likely(root, self._expand, budget, width=self._width, floor=self._floor)

    def close(self) -> None:
        """Give every block back."""
        for table in self._lines.values():
            table.release()

    def _settle(self) -> None:
        """Keep the line that agrees longest with the text, cut to where it does; the last token stays to be computed."""
        behind = tuple(self._text[self._base : -1])
        agreed = {path: _agreement(path, behind) for path in self._lines}
        kept = max(agreed, key=lambda path: agreed[path])
        for path, table in self._lines.items():
            if path != kept:
                table.release()
        table = self._lines[kept]
        self._base = min(self._base + agreed[kept], len(self._text) - 1)
        table.truncate(self._base)
        self._lines = {(): table}

    def _catch_up(self) -> Tensor:
        """Compute what the cache lacks of the text; logits [V] behind its end."""
        table = self._lines[()]
        while True:
            pending = self._text[self._base : self._base + CHUNK]
            logits = self._cache.run([(table, pending)])
            self._base += len(pending)
            if self._base == len(self._text):
                return logits[0]

    def _expand(self, nodes: Sequence[Node]) -> Tensor:
        """Logits [n, V] behind nodes of one level. The first child goes on in its parent's table, others fork it."""
        for node in nodes:
            self._lines[node.path] = self._lines[node.path[:-1]].fork()
        for parent in {node.path[:-1] for node in nodes}:
            self._lines.pop(parent).release()  # its children hold all that it held
        return self._cache.run([(self._lines[node.path], [node.token]) for node in nodes])


def _agreement(a: Sequence[int], b: Sequence[int]) -> int:
    """Leading tokens that two lines share."""
    differs = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(differs, min(len(a), len(b)))


def _load(name: str, target: Target) -> Decoder | NativeDecoder:
    """Another model, in the target's format. UnsupportedError for one with another tokenizer."""
    from toolkit.model.store import resolve
    from toolkit.model.weights import load_model
    from toolkit.text.tokenizer import load_tokenizer

    folder = resolve(name)
    mark = load_tokenizer(folder).fingerprint
    if mark != target.tokenizer.fingerprint:
        raise UnsupportedError(
            f"model {name!r} cannot draft for {target.model}: its tokenizer is {mark[:12]}, not {target.tokenizer.fingerprint[:12]}",
            hint="a draft model has the target's own tokenizer",
        )
    dtype = str(target.decoder.dtype).removeprefix("torch.")
    decoder = load_model(folder, device=str(target.decoder.device), dtype=dtype)
    return NativeDecoder(decoder) if isinstance(target.decoder, NativeDecoder) else decoder


def _cost(decoder: Decoder | NativeDecoder) -> Cost:
    """A token goes through every matrix once."""
    weights = weights_read(decoder.config)
    return Cost(weights, weights * (1 if isinstance(decoder, NativeDecoder) else decoder.dtype.itemsize))


def weights_read(config: ModelConfig) -> int:
    """Entries of the matrices that one token goes through: layers and head."""
    attention = (2 * config.heads + 2 * config.kv_heads) * config.head_dim
    layer = config.hidden_size * (attention + 3 * config.intermediate)
    return config.layers * layer + config.vocab_size * config.hidden_size
