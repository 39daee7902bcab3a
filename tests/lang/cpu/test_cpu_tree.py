"""Draft trees of the CPU stand-ins against trees of plain Python objects, and verification against all that can happen."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from types import ModuleType
from typing import Any

import pytest
import torch


@dataclass
class Drafted:
    """What drafting `steps` levels with `topk` branches gives, as SGLang numbers it, with the parent of every candidate."""

    topk: int
    steps: int
    seed: int
    parents: dict[int, int | None] = field(default_factory=dict)  # candidate -> candidate, None = the root
    scores: dict[int, float] = field(default_factory=dict)
    groups: list[int] = field(default_factory=lambda: [-1])

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        level = list(range(self.topk))
        for candidate in level:
            self.parents[candidate], self.scores[candidate] = None, chance.random()
        self.groups += level
        kept = level
        for step in range(1, self.steps):
            base = self.topk + self.topk**2 * (step - 1)
            level = []
            for k, parent in enumerate(kept):
                for c in range(self.topk):
                    candidate = base + k * self.topk + c
                    self.parents[candidate], self.scores[candidate] = parent, self.scores[parent] * chance.random()
                    level.append(candidate)
            kept = sorted(level, key=lambda candidate: -self.scores[candidate])[: self.topk]
            self.groups += kept
        if self.steps > 1:
            self.groups = self.groups[: -self.topk]  # SGLang drops those of the last level: nothing comes after it
        else:
            self.groups = []

    def best(self, count: int) -> list[int]:
        return sorted(sorted(self.scores, key=lambda candidate: -self.scores[candidate])[:count])


def built(
    kernels: ModuleType, drafts: list[Drafted], count: int, lengths: list[int], chosen: list[list[int]]
) -> dict[str, torch.Tensor]:
    batch = len(drafts)
    links = {name: torch.full((batch, count), -1) for name in ("rows", "first", "sibling")}
    mask, positions = torch.ones(batch * count * count + 5, dtype=torch.bool), torch.full((batch * count,), -1)
    kernels.build_tree_kernel_efficient_cpu(
        torch.tensor([draft.groups for draft in drafts]), torch.tensor(chosen), torch.tensor(lengths), mask, positions,
        links["rows"], links["first"], links["sibling"], drafts[0].topk, drafts[0].steps, count, 1,
    )  # fmt: skip
    return {**links, "mask": mask[: batch * count**2].view(batch, count, count), "positions": positions.view(batch, count)}


def children(found: dict[str, torch.Tensor], b: int, node: int) -> Iterator[int]:
    child = int(found["first"][b, node])
    while child >= 0:
        yield child
        child = int(found["sibling"][b, child])


@pytest.mark.parametrize(
    ("topk", "steps", "count"), [(1, 1, 2), (1, 3, 4), (1, 7, 8), (2, 1, 3), (2, 3, 6), (4, 3, 8), (4, 3, 16), (3, 5, 9)]
)
def test_a_built_tree_is_the_tree_of_the_chosen_candidates(kernels: ModuleType, topk: int, steps: int, count: int) -> None:
    for seed in range(5):
        drafts, lengths = [Drafted(topk, steps, 2 * seed), Drafted(topk, steps, 2 * seed + 1)], [7, 3]
        chosen = [draft.best(count - 1) for draft in drafts]
        found = built(kernels, drafts, count, lengths, chosen)
        assert torch.equal(found["rows"], torch.arange(2 * count).view(2, count))
        for b, draft in enumerate(drafts):
            node_of: dict[int | None, int] = {None: 0} | {candidate: i + 1 for i, candidate in enumerate(chosen[b])}
            parent = {node_of[candidate]: node_of[draft.parents[candidate]] for candidate in chosen[b]}
            for node in range(count):
                path = [node]
                while path[-1] != 0:
                    path.append(parent[path[-1]])
                assert found["mask"][b, node].nonzero().flatten().tolist() == sorted(path)
                assert int(found["positions"][b, node]) == lengths[b] + len(path) - 1
                assert list(children(found, b, node)) == [child for child in range(1, count) if parent[child] == node]


def test_a_node_whose_parent_was_not_chosen_is_linked_from_nowhere(kernels: ModuleType) -> None:
    draft = Drafted(2, 2, 0)
    orphan = next(
        candidate for candidate, parent in draft.parents.items() if parent == 1
    )  # candidates 0 and 1 are the first level
    found = built(kernels, [draft], 3, [0], [[0, orphan]])
    assert list(children(found, 0, 0)) == [1] and list(children(found, 0, 1)) == []


def test_a_mask_layout_that_is_not_there_is_refused_by_name(kernels: ModuleType) -> None:
    nothing = torch.zeros(1, dtype=torch.long)
    with pytest.raises(NotImplementedError, match="tree mask mode 0"):
        kernels.build_tree_kernel_efficient_cpu(*[nothing] * 8, 1, 1, 1, 0)


@pytest.mark.parametrize(("topk", "steps", "count"), [(1, 3, 4), (4, 3, 12), (3, 4, 9)])
def test_links_that_are_read_off_a_mask_are_those_of_the_tree(kernels: ModuleType, topk: int, steps: int, count: int) -> None:
    drafts = [Drafted(topk, steps, seed) for seed in (1, 2, 3)]
    lengths = [4, 0, 9]
    tree = built(kernels, drafts, count, lengths, [draft.best(count - 1) for draft in drafts])
    read = {name: torch.full((3, count), -5) for name in ("positions", "rows", "first", "sibling")}
    kernels.speculative.reconstruct_indices_from_tree_mask(
        tree["mask"].flatten(), torch.tensor(lengths), read["positions"], read["rows"], read["first"], read["sibling"], 3, count
    )
    assert {name: part.tolist() for name, part in read.items()} == {name: tree[name].tolist() for name in read}


# --- verification -----------------------------------------------------------------------------------------------------

# A tree over three tokens:  root -> 1 (token a), 2 (token b);  1 -> 3 (a), 4 (c);  2 -> 5 (b).  Node 0 is the root.
PARENTS = [-1, 0, 0, 1, 1, 2]
TOKENS = [9, 0, 1, 0, 2, 1]
FIRST = [1, 3, 5, -1, -1, -1]
SIBLING = [-1, 2, -1, 4, -1, -1]
DEPTH = 3


def state(batch: int) -> dict[str, Any]:
    count = len(PARENTS)
    return {
        "predicts": torch.full((batch * count,), -1, dtype=torch.int32),
        "accept_index": torch.full((batch, DEPTH), -1, dtype=torch.int32),
        "accept_token_num": torch.full((batch,), -1, dtype=torch.int32),
        "candidates": torch.tensor([TOKENS] * batch),
        "retrive_index": torch.arange(batch * count).view(batch, count),
        "retrive_next_token": torch.tensor([FIRST] * batch),
        "retrive_next_sibling": torch.tensor([SIBLING] * batch),
    }


def committed(given: dict[str, Any], b: int) -> tuple[int, ...]:
    """The tokens that were committed; what the arrays say must agree with each other on the way."""
    rows = given["accept_index"][b].tolist()
    count = int(given["accept_token_num"][b]) + 1
    assert rows[count:] == [-1] * (DEPTH - count)
    tokens = given["predicts"][rows[:count]].tolist()
    nodes = [row - b * len(PARENTS) for row in rows[:count]]
    assert nodes[0] == 0 and all(PARENTS[child] == node for node, child in itertools.pairwise(nodes))
    assert [TOKENS[node] for node in nodes[1:]] == tokens[:-1]
    return tuple(tokens)


def test_greedy_verification_commits_what_the_target_alone_would_say(kernels: ModuleType) -> None:
    every = list(itertools.product(range(3), repeat=len(PARENTS)))  # the target's argmax at every node
    given = state(len(every))
    kernels.verify_tree_greedy_cpu(**given, target_predict=torch.tensor(every))
    for b, answers in enumerate(every):
        node, expected = 0, []
        while True:
            expected.append(answers[node])
            below = [child for child in range(6) if PARENTS[child] == node and TOKENS[child] == answers[node]]
            if not below:
                break
            node = below[0]
        assert committed(given, b) == tuple(expected)


def test_greedy_verification_stops_at_the_depth_that_it_is_given(kernels: ModuleType) -> None:
    given = state(1)
    given["accept_index"] = torch.full((1, 2), -1, dtype=torch.int32)
    kernels.verify_tree_greedy_cpu(**given, target_predict=torch.zeros(1, 6, dtype=torch.long))
    assert given["accept_index"].tolist() == [[0, 1]] and given["accept_token_num"].tolist() == [1]


QUARTERS = {0: (1, 2, 1), 1: (2, 0, 2), 2: (0, 3, 1), 3: (4, 0, 0), 4: (1, 1, 2), 5: (0, 0, 4)}  # node -> probabilities x 4


def test_sampled_verification_commits_with_exactly_the_targets_probabilities(kernels: ModuleType) -> None:
    """All coins: those of nodes in quarters, that of the new token in twelfths, so that every interval is hit by its share."""
    probs = torch.tensor([[QUARTERS[node] for node in range(6)]]) / 4
    coins = [(i + 0.5) / 4 for i in range(4)]
    every = list(itertools.product(coins, coins, coins, [(i + 0.5) / 12 for i in range(12)]))  # of nodes 0, 1, 2 and the last
    given = state(len(every))
    uniform = torch.full((len(every), 6), 0.5)
    uniform[:, :3] = torch.tensor([row[:3] for row in every])
    kernels.tree_speculative_sampling_target_only(
        **given, uniform_samples=uniform, uniform_samples_for_final_sampling=torch.tensor([row[3] for row in every]),
        target_probs=probs.expand(len(every), 6, 3), draft_probs=torch.zeros(len(every), 6, 3),
    )  # fmt: skip
    seen: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)
    for b in range(len(every)):
        tokens = committed(given, b)
        for length in range(1, len(tokens) + 1):
            seen[tokens[:length]] += Fraction(1, len(every))
    for a in range(3):
        assert seen[(a,)] == Fraction(QUARTERS[0][a], 4)
        for c in range(3):
            if a < 2:  # tokens a and b are in the tree: nodes 1 and 2
                assert seen[a, c] == Fraction(QUARTERS[0][a] * QUARTERS[a + 1][c], 16)


def test_a_token_that_two_siblings_share_is_not_counted_twice(kernels: ModuleType) -> None:
    """Root -> 1 (token a), 2 (token a): a may take its probability once."""
    every = [(i + 0.5) / 8 for i in range(8)]
    batch = len(every)
    given = state(batch)
    given |= {
        "candidates": torch.tensor([[9, 0, 0]] * batch), "retrive_index": torch.arange(3 * batch).view(batch, 3),
        "retrive_next_token": torch.tensor([[1, -1, -1]] * batch), "retrive_next_sibling": torch.tensor([[-1, 2, -1]] * batch),
    }  # fmt: skip
    kernels.tree_speculative_sampling_target_only(
        **given, uniform_samples=torch.tensor(every).view(-1, 1).expand(batch, 3), uniform_samples_for_final_sampling=torch.full((batch,), 0.5),
        target_probs=torch.tensor([0.25, 0.75]).expand(batch, 3, 2), draft_probs=torch.zeros(batch, 3, 2),
    )  # fmt: skip
    assert given["accept_token_num"].tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
    assert given["predicts"][: 3 * batch].view(batch, 3)[2:, 0].tolist() == [1] * 6


@pytest.mark.parametrize("coin", [0.0, 0.999999999, 1.0])
def test_rounding_never_draws_a_token_without_probability(kernels: ModuleType, coin: float) -> None:
    given = state(1)
    kernels.tree_speculative_sampling_target_only(
        **given, uniform_samples=torch.ones(1, 6), uniform_samples_for_final_sampling=torch.tensor([coin]),
        target_probs=torch.tensor([0.0, 0.0, 1 / 3]).expand(1, 6, 3), draft_probs=torch.zeros(1, 6, 3),
    )  # fmt: skip
    assert committed(given, 0) == (2,)


def test_rounding_never_leaves_nothing_to_draw_where_the_children_have_all_of_the_probability(kernels: ModuleType) -> None:
    """The root's children are its tokens a and b, which add up to a little less than one; the coin falls beyond."""
    given = state(1)
    probs = torch.tensor([0.5, 0.4999999, 0.0]).expand(1, 6, 3).clone()
    probs[0, 1:] = torch.tensor([0.0, 0.0, 1.0])
    kernels.tree_speculative_sampling_target_only(
        **given, uniform_samples=torch.full((1, 6), 0.99999994), uniform_samples_for_final_sampling=torch.tensor([0.5]),
        target_probs=probs, draft_probs=torch.zeros(1, 6, 3),
    )  # fmt: skip
    assert committed(given, 0)[0] == 1


@pytest.mark.parametrize("threshold", ["threshold_single", "threshold_acc"])
def test_lossy_thresholds_are_refused_by_name(kernels: ModuleType, threshold: str) -> None:
    given = state(1)
    with pytest.raises(NotImplementedError, match="lossy"):
        kernels.tree_speculative_sampling_target_only(
            **given, uniform_samples=torch.ones(1, 6), uniform_samples_for_final_sampling=torch.ones(1),
            target_probs=torch.ones(1, 6, 3), draft_probs=torch.zeros(1, 6, 3), **{threshold: 0.9},
        )  # fmt: skip


# --- probabilities ----------------------------------------------------------------------------------------------------

PROBS = (0.4, 0.1, 0.3, 0.2)


@pytest.mark.parametrize(("k", "kept"), [(1, (0.4, 0, 0, 0)), (2, (0.4, 0, 0.3, 0)), (4, PROBS), (2**30, PROBS)])
def test_top_k_keeps_the_likeliest_and_their_proportions(kernels: ModuleType, k: int, kept: tuple[float, ...]) -> None:
    found = kernels.top_k_renorm_prob(torch.tensor([PROBS, PROBS]), torch.tensor([k, 4]))
    torch.testing.assert_close(found, torch.tensor([[p / sum(kept) for p in kept], PROBS]))


@pytest.mark.parametrize(
    ("p", "kept"), [(0.05, (0.4, 0, 0, 0)), (0.4, (0.4, 0, 0, 0)), (0.5, (0.4, 0, 0.3, 0)), (0.95, PROBS), (1.0, PROBS)]
)
def test_top_p_keeps_the_least_number_that_reaches_it(kernels: ModuleType, p: float, kept: tuple[float, ...]) -> None:
    found = kernels.top_p_renorm_prob(torch.tensor([PROBS, PROBS]), torch.tensor([p, 1.0]))
    torch.testing.assert_close(found, torch.tensor([[q / sum(kept) for q in kept], PROBS]))
