"""A burst of speculation has exactly the distribution of plain decoding: every outcome enumerated, none sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from unittest import mock

import pytest
import torch
from torch import Tensor

from tests.sample.accept_twin import FAULTS, Model, burst_texts, cuts, difference, measure, plain, plain_texts
from toolkit.contracts import SamplingParams
from toolkit.draft import grow
from toolkit.draft.contract import Budget
from toolkit.draft.grow import Node, drawn
from toolkit.draft.tree import DraftTree
from toolkit.sample.accept import choose, dense
from toolkit.sample.draw import draw

EXACT = 1e-12
SETTINGS = {
    "temperature": SamplingParams(temperature=0.8),
    "hot": SamplingParams(temperature=1.7),
    "top_k": SamplingParams(temperature=1.0, top_k=2),
    "top_p": SamplingParams(temperature=1.0, top_p=0.8),
    "min_p": SamplingParams(temperature=1.2, min_p=0.3),
    "all cuts": SamplingParams(temperature=1.1, top_k=3, top_p=0.9, min_p=0.1),
    "penalties": SamplingParams(temperature=0.9, repetition_penalty=1.4, presence_penalty=0.3, frequency_penalty=0.6),
    "bias": SamplingParams(temperature=1.0, logit_bias={0: 1.5, 2: -2.0}),
    "min_tokens": SamplingParams(temperature=1.0, min_tokens=2),
    "greedy": SamplingParams(),
    "greedy penalties": SamplingParams(repetition_penalty=2.0, frequency_penalty=1.0),
}
GIVEN = {  # deterministic trees: tokens, parents
    "one": ((2,), (-1,)),
    "chain of 2": ((1, 1), (-1, 0)),
    "chain of 3": ((0, 2, 0), (-1, 0, 1)),
    "two siblings": ((3, 0), (-1, -1)),
    "all siblings": ((0, 1, 2, 3), (-1, -1, -1, -1)),
    "mixed": ((1, 0, 2, 3, 1), (-1, -1, 0, 0, 1)),
    "deep branch": ((2, 1, 0, 1, 2, 2), (-1, -1, 0, 0, 2, 3)),
}
DRAWN = {  # drawn trees: vocabulary, nodes, depth, width
    "chain of 1": (6, 1, 1, 1),
    "chain of 2": (5, 2, 2, 1),
    "chain of 3": (3, 3, 3, 1),
    "two siblings": (5, 2, 1, 2),
    "three siblings": (4, 3, 1, 3),
    "all siblings": (3, 3, 1, 3),
    "two, one below": (4, 3, 2, 2),
    "two levels of two": (3, 4, 2, 2),
}
both_grammars = pytest.mark.parametrize("grammar", [False, True], ids=["free", "grammar"])
DRAWING = {name: params for name, params in SETTINGS.items() if params.temperature > 0}
all_settings = pytest.mark.parametrize("params", SETTINGS.values(), ids=SETTINGS.keys())


def drawn_trees(draft: Model, params: SamplingParams, nodes: int, depth: int, width: int) -> Iterator[tuple[float, DraftTree]]:
    """Every tree that the draft model can draw, with its probability."""
    pending: list[tuple[int, ...]] = [()]
    while pending:
        script = pending.pop()
        mass, used = 1.0, 0

        def scripted(row: Tensor, random: object, script: tuple[int, ...] = script) -> int:
            nonlocal mass, used
            if used == len(script):
                pending.extend((*script, token) for token in range(len(row)) if row[token] > 0)
                raise LookupError
            token = script[used]
            mass *= float(row[token] / row.sum())
            used += 1
            return token

        def expand(level: Sequence[Node]) -> Tensor:
            return torch.stack([draft.ready(node.path, params) for node in level])

        with mock.patch.object(grow, "invert", scripted):
            try:
                budget = Budget(nodes, depth, params)
                tree = drawn(draft.ready((), params), expand, budget, torch.Generator(), width=width, floor=0.0)
            except LookupError:
                continue
        assert used == len(script)
        yield mass, tree


@all_settings
@both_grammars
def test_plain_decoding_draws_from_the_distribution_of_its_slow_twin(params: SamplingParams, grammar: bool) -> None:
    model = Model(6, seed=1, grammar=grammar)
    for history in [(), (1,), (2, 2)]:
        row = model.ready(history, params)
        found = measure(lambda script, row=row: draw(row, params, script), cuts(row.tolist(), params, (), None))  # type: ignore[misc]
        assert all(abs(found.get(token, 0.0) - p) < EXACT for token, p in enumerate(plain(row.tolist(), params)))


@all_settings
@both_grammars
@pytest.mark.parametrize("tree", GIVEN.values(), ids=GIVEN.keys())
def test_a_burst_over_a_given_tree_is_distributed_as_plain_decoding(
    params: SamplingParams, grammar: bool, tree: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    model = Model(4, seed=2, grammar=grammar)
    texts = plain_texts(model, params, 4)
    assert difference(burst_texts(model, params, 4, iter([(1.0, DraftTree(*tree))])), texts) < EXACT
    assert abs(sum(texts.values()) - 1.0) < EXACT


@pytest.mark.parametrize("params", DRAWING.values(), ids=DRAWING.keys())
@both_grammars
@pytest.mark.parametrize("shape", DRAWN.values(), ids=DRAWN.keys())
def test_a_burst_over_drawn_trees_is_distributed_as_plain_decoding(
    params: SamplingParams, grammar: bool, shape: tuple[int, int, int, int]
) -> None:
    size, nodes, depth, width = shape
    model, draft = Model(size, seed=3, grammar=grammar), Model(size, seed=4)
    trees = list(drawn_trees(draft, params, nodes, depth, width))
    assert abs(sum(mass for mass, _ in trees) - 1.0) < EXACT
    length = depth + 1
    texts = plain_texts(model, params, length)
    assert difference(burst_texts(model, params, length, iter(trees)), texts) < EXACT


def test_a_drafter_whose_filters_are_not_the_requests_changes_nothing() -> None:
    params = SamplingParams(temperature=0.7, top_k=3)
    model, draft = Model(4, seed=5), Model(4, seed=6)
    for other in (SamplingParams(temperature=2.0), SamplingParams(temperature=0.7, top_k=1), SamplingParams(temperature=0.2)):
        trees = drawn_trees(draft, other, 3, 2, 2)
        assert difference(burst_texts(model, params, 3, trees), plain_texts(model, params, 3)) < EXACT


def test_a_draft_equal_to_the_target_is_always_accepted() -> None:
    params = SamplingParams(temperature=0.9, top_p=0.95)
    model = Model(5, seed=7)
    row, q = model.ready((), params), dense(model.ready((), params), params)[None]
    for token in range(5):
        if q[0, token] > 0:
            found = measure(
                lambda script, t=token: choose(row, params, script, [t], q), cuts(row.tolist(), params, [token], q.tolist())
            )  # type: ignore[misc]
            assert set(found) == {(token, 0)}


# Negative controls: what is wrong must be seen, by the same comparison.

CONTROLS = {
    "p for the residual": (SamplingParams(temperature=1.0), (4, 1, 1, 1)),
    "q ignored": (SamplingParams(temperature=1.0), (4, 1, 1, 1)),
    "one q for all siblings": (SamplingParams(temperature=1.0), (4, 2, 1, 2)),
    "cuts one after the other": (SamplingParams(temperature=1.0, top_k=4, top_p=0.85), (6, 1, 1, 1)),
    "top-k before the mask": (SamplingParams(temperature=1.5, top_k=2), (6, 1, 1, 1)),
}


@pytest.mark.parametrize("fault", CONTROLS)
def test_a_fault_is_seen(fault: str) -> None:
    params, (size, *shape) = CONTROLS[fault]
    model, draft = Model(size, seed=8, grammar="mask" in fault), Model(size, seed=9)
    trees = list(drawn_trees(draft, params, *shape))
    texts = plain_texts(model, params, 2)
    assert difference(burst_texts(model, params, 2, trees, ""), texts) < EXACT
    assert difference(burst_texts(model, params, 2, trees, fault), texts) > 0.01
    assert set(CONTROLS) == set(FAULTS)
