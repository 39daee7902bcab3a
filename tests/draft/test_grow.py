"""Trees out of logits: the likeliest paths against all paths, draws against their q."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tests.sample.accept_twin import Model
from toolkit.contracts import SamplingParams
from toolkit.draft.contract import Budget
from toolkit.draft.grow import Node, drawn, likely
from toolkit.draft.tree import ROOT, DraftTree
from toolkit.sample.accept import checked
from toolkit.sample.draw import generator

WARM = SamplingParams(temperature=0.8)


class Counting:
    """Expands nodes of a model and keeps count."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.levels: list[list[tuple[int, ...]]] = []

    @property
    def root(self) -> Tensor:
        return self.model.logits(())

    def __call__(self, nodes: Sequence[Node]) -> Tensor:
        self.levels.append([node.path for node in nodes])
        return torch.stack([self.model.logits(node.path) for node in nodes])


def paths(tree: DraftTree) -> list[tuple[int, ...]]:
    return [tuple(tree.tokens[node] for node in path) for path in tree.paths]


def joint(model: Model, path: Sequence[int], temperature: float) -> float:
    rows = [torch.log_softmax(model.logits(path[:i]) / temperature, -1) for i in range(len(path))]
    return sum(float(row[token]) for row, token in zip(rows, path, strict=True))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("nodes", "depth"), [(1, 1), (4, 2), (9, 3), (20, 3)])
@pytest.mark.parametrize("sampling", [SamplingParams(), WARM], ids=["greedy", "warm"])
def test_the_likeliest_of_all_paths_are_found(seed: int, nodes: int, depth: int, sampling: SamplingParams) -> None:
    model = Model(4, seed)
    everything = [path for size in range(1, depth + 1) for path in itertools.product(range(4), repeat=size)]
    everything.sort(key=lambda path: -joint(model, path, sampling.temperature or 1.0))
    tree = likely(Counting(model).root, Counting(model), Budget(nodes, depth, sampling), width=64, floor=0.0)
    assert set(paths(tree)) == set(everything[:nodes])
    assert tree.q is None


def test_width_one_is_the_greedy_chain_in_one_call_a_token() -> None:
    model = Model(6, seed=1)
    expand = Counting(model)
    tree = likely(expand.root, expand, Budget(4, 4, WARM), width=1, floor=0.0)
    hoped: list[int] = []
    for _ in range(4):
        hoped.append(int(model.logits(hoped).argmax()))
    assert tree.is_chain
    assert list(tree.tokens) == hoped
    assert [len(level) for level in expand.levels] == [1, 1, 1]


def test_what_cannot_make_it_into_the_tree_is_not_expanded() -> None:
    model = Model(5, seed=2)
    expand = Counting(model)
    tree = likely(expand.root, expand, Budget(3, 6, WARM), width=5, floor=0.0)
    assert len(tree) == 3
    assert all(len(level) <= 3 for level in expand.levels)
    assert not [path for level in expand.levels for path in level if path not in paths(tree)] or len(expand.levels) < 6


def test_no_node_is_less_likely_than_the_floor() -> None:
    model = Model(5, seed=3)
    tree = likely(Counting(model).root, Counting(model), Budget(30, 4, WARM), width=5, floor=0.2)
    assert 0 < len(tree) < 30
    assert all(joint(model, path, 0.8) >= math.log(0.2) for path in paths(tree))
    assert len(likely(Counting(model).root, Counting(model), Budget(30, 4, WARM), width=5, floor=0.999)) == 0


def test_a_token_that_the_model_excludes_is_never_guessed() -> None:
    row = torch.tensor([0.0, -torch.inf, 1.0])
    tree = likely(row, lambda nodes: row.expand(len(nodes), 3), Budget(12, 2, SamplingParams()), width=3, floor=0.0)
    assert len(tree) == 6
    assert 1 not in tree.tokens


@pytest.mark.parametrize(("nodes", "depth", "width"), [(1, 1, 1), (3, 3, 1), (5, 2, 3), (12, 4, 4), (64, 8, 16)])
def test_drawn_trees_keep_to_the_budget_and_every_q_is_one_that_its_node_can_come_from(
    nodes: int, depth: int, width: int
) -> None:
    for seed in range(20):
        model = Model(7, seed)
        expand = Counting(model)
        tree = drawn(expand.root, expand, Budget(nodes, depth, WARM), generator(seed), width=width, floor=0.0)
        assert tree.q is not None
        assert tree.q.dtype == torch.float64
        assert 0 < len(tree) <= nodes
        assert tree.depth <= depth
        for family in tree.children.values():
            assert len(family) <= width
            checked(tree.q[list(family)], [tree.tokens[node] for node in family], 7)
        first = tree.q[tree.children[ROOT][0]]
        assert torch.allclose(first, torch.softmax(expand.root.double() / 0.8, -1))
        asked = [path for level in expand.levels for path in level]
        assert len(set(asked)) == len(asked)
        assert set(asked) <= set(paths(tree))


def test_siblings_are_drawn_until_nothing_is_left() -> None:
    row = torch.tensor([0.0, 1.0, -torch.inf])
    tree = drawn(row, lambda nodes: row.expand(len(nodes), 3), Budget(9, 1, WARM), generator(0), width=9, floor=0.0)
    assert sorted(tree.tokens) == [0, 1]


def test_the_same_generator_draws_the_same_tree() -> None:
    model = Model(9, seed=4)
    trees = [
        drawn(Counting(model).root, Counting(model), Budget(8, 3, WARM), generator(seed), width=3, floor=0.0)
        for seed in (1, 1, 2)
    ]
    assert trees[0].tokens == trees[1].tokens
    assert trees[0].tokens != trees[2].tokens
