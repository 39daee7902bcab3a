"""Chains and trees of real draws against a float64 reference, vocabulary of 50: chi-square at a false-alarm rate of 1e-6.

Each fault of the enumeration must be rejected by the very same test, so it has the power to see one.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
import torch

from tests.sample.accept_twin import FAULTS, Model, faulty, plain, twin_ready
from toolkit.contracts import SamplingParams
from toolkit.draft.contract import Budget
from toolkit.draft.grow import drawn
from toolkit.draft.tree import ROOT, DraftTree
from toolkit.sample.accept import choose
from toolkit.sample.draw import generator

pytestmark = pytest.mark.slow  # half a minute of small draws

FALSE_ALARM = 1e-6
ROUNDS = 1500
V = 50
Shape = tuple[int, int, int, float]
SETTINGS = {
    "temperature": SamplingParams(temperature=1.0),
    "joint cuts": SamplingParams(temperature=1.2, top_k=12, top_p=0.85, min_p=0.02),
    "penalties": SamplingParams(temperature=1.0, repetition_penalty=1.5, presence_penalty=0.5, logit_bias={7: 2.0}),
}
SHAPES = {"chain": (3, 3, 1, 0.8), "tree": (6, 2, 3, 0.25)}  # nodes, depth, width, temperature of the draft


def p_value(counts: Counter[int], expected: list[float], rounds: int) -> float:
    """Of Pearson's chi-square; cells expected fewer than 5 times are one cell, a count where none can be is impossible."""
    rare = [i for i, p in enumerate(expected) if 0.0 < p * rounds < 5.0]
    if any(counts[i] for i, p in enumerate(expected) if p == 0.0):
        return 0.0
    cells = [(counts[i], p * rounds) for i, p in enumerate(expected) if p * rounds >= 5.0]
    if rare:
        cells.append((sum(counts[i] for i in rare), sum(expected[i] for i in rare) * rounds))
    statistic = sum((seen - hoped) ** 2 / hoped for seen, hoped in cells)
    return float(
        torch.special.gammaincc(torch.tensor((len(cells) - 1) / 2.0, dtype=torch.float64), torch.tensor(statistic / 2.0))
    )


def bursts(params: SamplingParams, shape: Shape, fault: str | None, rounds: int) -> list[Counter[int]]:
    """Tokens at the first and at the second place of bursts: model and drafter look at the number of tokens alone."""
    nodes, depth, width, temperature = shape
    model, draft = _model(params), Model(V, seed=2, spread=1.2)
    random, guesses = generator(11), generator(12)
    chooser = choose if fault is None else faulty(fault)
    rows = cache(lambda length: model.ready((3,) * length, params, cut_first=fault == "top-k before the mask"))
    drafts = cache(lambda length: 1.2 * model.logits((3,) * length) + 0.6 * draft.logits((3,) * length))
    seen: list[Counter[int]] = [Counter(), Counter()]
    budget = Budget(nodes, depth, SamplingParams(temperature=temperature))
    for _ in range(rounds):
        tree: DraftTree = drawn(
            drafts(0),
            lambda level: torch.stack([drafts(len(node.path)) for node in level]),
            budget,
            guesses,
            width=width,
            floor=0.0,
        )
        place: int | None = ROOT
        for at in range(2):
            if place is None:
                break
            children = tree.children.get(place, ())
            assert tree.q is not None
            token, child = chooser(rows(at), params, random, [tree.tokens[node] for node in children], tree.q[list(children)])
            seen[at][token] += 1
            place = None if child is None else children[child]
    return seen


def worst(params: SamplingParams, shape: Shape, fault: str | None = None) -> float:
    """The smaller p-value of both places."""
    first, second = bursts(params, shape, fault, ROUNDS)
    if fault is None:
        assert second.total() > 300
    return min(
        p_value(counts, plain(twin_ready(_model(params), (3,) * at, params), params), counts.total())
        for at, counts in enumerate((first, second))
    )


def _model(params: SamplingParams) -> Model:
    """A grammar forbids four tokens in ten where top-k is on: their order matters then."""
    return Model(V, seed=1, spread=1.2, grammar=params.top_k > 0)


@pytest.mark.parametrize("params", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_drawn_bursts_pass_the_chi_square_test_at_every_place(params: SamplingParams, shape: Shape) -> None:
    assert worst(params, shape) > FALSE_ALARM


CONTROLS = {
    "p for the residual": (SETTINGS["temperature"], SHAPES["tree"]),
    "q ignored": (SETTINGS["temperature"], SHAPES["tree"]),
    "one q for all siblings": (SETTINGS["temperature"], SHAPES["tree"]),
    "cuts one after the other": (SETTINGS["joint cuts"], SHAPES["chain"]),
    "top-k before the mask": (SETTINGS["joint cuts"], SHAPES["chain"]),
}


@pytest.mark.parametrize("fault", CONTROLS)
def test_the_chi_square_test_rejects_every_fault(fault: str) -> None:
    assert set(CONTROLS) == set(FAULTS)
    assert worst(*CONTROLS[fault], fault) < FALSE_ALARM


def test_the_statistic_has_the_false_alarm_rate_that_it_says() -> None:
    expected = plain([0.1 * i for i in range(10)], SamplingParams(temperature=1.0))
    random = torch.Generator().manual_seed(5)
    values = []
    for _ in range(400):
        draws = torch.multinomial(torch.tensor(expected), 500, replacement=True, generator=random).tolist()
        values.append(p_value(Counter(draws), expected, 500))
    assert 0.03 < sum(value < 0.1 for value in values) / 400 < 0.2
