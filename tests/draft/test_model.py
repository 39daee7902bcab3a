"""The draft model with its cache against the same model recomputed from nothing; what it shares, refuses and gives back."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.draft.sources import native_target, torch_target
from toolkit.contracts import SamplingParams
from toolkit.draft import model as draft_model
from toolkit.draft.cache import DraftCache
from toolkit.draft.contract import Budget, Commit, Target
from toolkit.draft.grow import Node, drawn, likely
from toolkit.draft.model import ModelDrafter, ModelSource
from toolkit.draft.tree import DraftTree
from toolkit.errors import EngineError, UnsupportedError, UsageError
from toolkit.model.native.decoder import NativeDecoder
from toolkit.sample.draw import generator

WARM = SamplingParams(temperature=0.9, top_k=30)
targets = pytest.mark.parametrize("target", [torch_target, native_target], ids=["torch", "native"])


class FromNothing:
    """A drafter without a cache between proposals or nodes."""

    def __init__(self, source: ModelSource, seed: int) -> None:
        self.source = source
        self.cache = DraftCache(source.cache.decoder, source.cache.vocab_size, 4096)
        self.random = generator(seed) if source.draw else None

    def after(self, tokens: Sequence[int]) -> Tensor:
        table = self.cache.table()
        row = self.cache.run([(table, tokens)])[0]
        table.release()
        return row

    def propose(self, text: list[int], budget: Budget) -> DraftTree:
        def expand(nodes: Sequence[Node]) -> Tensor:
            return torch.stack([self.after([*text, *node.path]) for node in nodes])

        root, shape = self.after(text), {"width": self.source.width, "floor": self.source.floor}
        if self.random is not None and budget.sampling.temperature > 0:
            return drawn(root, expand, budget, self.random, **shape)  # type: ignore[arg-type]
        return likely(root, expand, budget, **shape)  # type: ignore[arg-type]


def follow(tree: DraftTree, noise: random.Random, vocabulary: int) -> list[int]:
    """A commit: some path of the tree, at times cut short, then a token that may be anything."""
    tokens: list[int] = []
    place = -1
    while place in tree.children and noise.random() < 0.8:
        place = noise.choice(tree.children[place])
        tokens.append(tree.tokens[place])
    return [*tokens, *(noise.randrange(vocabulary) for _ in range(noise.choice([0, 1, 1, 3]) or not tokens))]


@targets
@pytest.mark.parametrize("draw", [False, True])
@pytest.mark.parametrize("width", [1, 3])
def test_proposals_are_those_of_the_model_recomputed_from_nothing(target: Any, draw: bool, width: int) -> None:
    made: Target = target()
    source = ModelSource(made, {"draw": draw, "width": width, "floor": 0.0})
    noise = random.Random(5)
    drafter, twin = source.open(7), FromNothing(source, 7)
    text = [noise.randrange(made.vocab_size) for _ in range(40)]
    drafter.observe(Commit(tuple(text)))
    for step in range(30):
        budget = Budget(noise.choice([1, 4, 9]), noise.choice([1, 3, 5]), WARM if step % 3 else SamplingParams())
        tree, hoped = drafter.propose(budget), twin.propose(text, budget)
        assert (tree.tokens, tree.parent) == (hoped.tokens, hoped.parent)
        if tree.q is not None and hoped.q is not None:
            assert torch.allclose(tree.q, hoped.q, atol=1e-4)
        for table in drafter._lines.values():
            table.check()
        commit = follow(tree, noise, made.vocab_size)
        text += commit
        drafter.observe(Commit(tuple(commit)))
    drafter.close()
    assert source.cache.pool.in_use == 0
    source.cache.pool.check()


@targets
def test_an_accepted_draft_is_not_computed_again(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ModelSource(target(), {"width": 1, "floor": 0.0})
    rows: list[int] = []
    run = DraftCache.run
    monkeypatch.setattr(
        DraftCache, "run", lambda self, lines: rows.extend(len(tokens) for _, tokens in lines) or run(self, lines)
    )
    drafter = source.open(0)
    drafter.observe(Commit(tuple(range(20))))
    tree = drafter.propose(Budget(4, 4, SamplingParams()))
    assert rows == [20, 1, 1, 1]
    rows.clear()
    drafter.observe(Commit((*tree.tokens, 5)))  # all accepted: the last of them and the bonus are still to be computed
    drafter.propose(Budget(1, 1, SamplingParams()))
    assert rows == [2]
    rows.clear()
    drafter.propose(Budget(1, 1, SamplingParams()))
    assert rows == [1]
    drafter.close()


@targets
def test_the_early_exit_copies_no_weight(target: Any) -> None:
    made: Target = target()
    source = ModelSource(made, {"layers": 2})
    decoder = source.cache.decoder
    assert decoder.config.layers == 2
    if isinstance(decoder, NativeDecoder) and isinstance(made.decoder, NativeDecoder):
        assert decoder._head is made.decoder._head
    else:
        assert decoder.embedding is made.torch().embedding  # type: ignore[union-attr]


def test_a_long_prompt_is_computed_in_pieces() -> None:
    source = ModelSource(torch_target(), {"floor": 0.0})
    text = [i % 200 for i in range(2 * draft_model.CHUNK + 3)]
    drafter = source.open(0)
    drafter.observe(Commit(tuple(text)))
    budget = Budget(6, 2, SamplingParams())
    assert drafter.propose(budget).tokens == FromNothing(source, 0).propose(text, budget).tokens
    drafter.close()


def test_at_the_end_of_the_context_it_guesses_no_further() -> None:
    target = native_target()
    source = ModelSource(target, {"floor": 0.0, "width": 1})
    context = target.decoder.config.context
    drafter = source.open(0)
    drafter.observe(Commit(tuple(i % 200 for i in range(context - 2))))
    assert drafter.propose(Budget(8, 8, SamplingParams())).depth == 3  # places context-2 and context-1 hold two of them
    drafter.observe(Commit((1, 2)))
    assert drafter.propose(Budget(8, 8, SamplingParams())).depth == 1
    drafter.observe(Commit((3,)))
    assert len(drafter.propose(Budget(8, 8, SamplingParams()))) == 0
    drafter.close()
    assert source.cache.pool.in_use == 0


def test_where_no_block_is_left_it_raises_and_gives_back_what_it_holds() -> None:
    source = ModelSource(torch_target(), {"kv_tokens": 256, "floor": 0.0})
    first, second = source.open(0), source.open(1)
    first.observe(Commit(tuple(range(200))))
    second.observe(Commit(tuple(range(100))))
    assert len(first.propose(Budget(4, 2, SamplingParams())))
    with pytest.raises(EngineError, match="KV blocks are in use"):
        second.propose(Budget(4, 2, SamplingParams()))
    second.close()
    assert len(first.propose(Budget(4, 2, SamplingParams())))
    first.close()
    assert source.cache.pool.in_use == 0
    source.cache.pool.check()


@targets
def test_a_draft_model_of_another_vocabulary_size_guesses_inside_the_targets(target: Any) -> None:
    decoder = target().decoder
    small, large = DraftCache(decoder, 100, 256), DraftCache(decoder, 400, 256)
    for cache in (small, large):
        logits = cache.run([(cache.table(), [1, 2, 3])])
        assert logits.shape == (1, cache.vocab_size)
        known = min(cache.vocab_size, decoder.config.vocab_size)
        assert bool(torch.isinf(logits[:, known:]).all())
        assert bool(torch.isfinite(logits[:, :known]).all())


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"layers": 0}, "layers"),
        ({"layers": 3}, "1 to 2"),
        ({"layers": 1, "model": "smollm2"}, "not both"),
        ({"width": 0}, "width"),
        ({"floor": 2}, "floor"),
        ({"draw": "yes"}, "draw"),
        ({"model": 3}, "model"),
        ({"kv_tokens": 1}, "kv_tokens"),
        ({"depth": 3}, "no option 'depth'"),
        ({"model": "not a model at all"}, "not a model at all"),
    ],
)
def test_an_option_that_is_none_is_refused_by_name(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        ModelSource(torch_target(), options)


def test_a_model_of_one_layer_has_no_early_exit() -> None:
    target = torch_target()
    one = Target(target.torch().first(1), target.torch, target.tokenizer, "tiny", "tiny", target.vocab_size)
    with pytest.raises(UnsupportedError, match="no early exit"):
        ModelSource(one, {})


def test_a_model_with_another_tokenizer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        fingerprint = "f00d" * 16

    monkeypatch.setattr("toolkit.model.store.resolve", lambda name: Path(name))
    monkeypatch.setattr("toolkit.text.tokenizer.load_tokenizer", lambda folder: Other())
    with pytest.raises(UnsupportedError, match="its tokenizer is f00df00df00d"):
        ModelSource(torch_target(), {"model": "somewhere"})


@targets
def test_another_model_with_the_same_tokenizer_drafts_in_the_targets_format(
    target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Target = target()
    monkeypatch.setattr("toolkit.model.store.resolve", lambda name: Path(name))
    monkeypatch.setattr("toolkit.text.tokenizer.load_tokenizer", lambda folder: made.tokenizer)
    monkeypatch.setattr("toolkit.model.weights.load_model", lambda folder, **options: made.torch())
    source = ModelSource(made, {"model": "somewhere", "floor": 0.0})
    assert type(source.cache.decoder) is type(made.decoder)
    drafter: ModelDrafter = source.open(0)
    drafter.observe(Commit((1, 2, 3)))
    assert len(drafter.propose(Budget(4, 2, SamplingParams()))) == 4
    drafter.close()
