"""Worth: as many guesses of known chance as pay for their rows; what came true decides how far a drafter is believed."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.test_pace import FLAT, MEASURED, PARAMS, ROOM, costs_of, lengths
from toolkit.draft.contract import Budget
from toolkit.draft.tree import EMPTY, DraftTree, chain
from toolkit.engine.pace import Pace, Stride
from toolkit.engine.worth import REACH, Trust, worthwhile

SHARES = st.lists(st.floats(0, 10), max_size=8)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(-5, 10)), max_size=8))
def test_the_number_of_guesses_is_the_best_of_all(pairs: Sequence[tuple[float, float]]) -> None:
    gains, prices = [gain for gain, _ in pairs], [price for _, price in pairs]
    profits = [0.0, *(sum(gains[:n]) - prices[n - 1] for n in range(1, len(pairs) + 1))]
    assert profits[worthwhile(gains, prices)] == pytest.approx(max(profits))


def worth(budget: Budget, chances: Sequence[float]) -> int:
    assert budget.worth is not None and budget.reach == REACH
    return budget.worth(chances)


def test_sure_guesses_are_taken_far_ahead_unsure_ones_not_at_all_and_fewer_where_more_lines_run() -> None:
    counts = []
    for lines in (1, 4, 16):
        pace = Pace(costs_of(MEASURED))
        stride, *_ = [pace.stride(PARAMS, tells_chances=True) for _ in range(lines)]
        lengths([stride], (0.4,), 60, seed=1)
        falling = [0.95**n for n in range(1, REACH + 1)]
        budget = stride.budget(ROOM)
        counts.append(worth(budget, falling))
        assert worth(budget, [0.05] * REACH) == 0 and worth(budget, []) == 0
    assert counts[0] >= 12 and counts == sorted(counts, reverse=True) and counts[2] < counts[0]


def test_promises_that_do_not_come_true_are_believed_less_and_that_is_forgotten() -> None:
    pace = Pace(costs_of(MEASURED))
    stride = pace.stride(PARAMS, tells_chances=True)
    taken = []
    for _ in range(12):
        n = worth(stride.budget(ROOM), [0.6, 0.5, 0.4])
        taken.append(n)
        if n:
            stride.learn(chain([1] * n), 0)
    assert taken[0] == 3 and 0 in taken
    for _ in range(1500):
        last = worth(stride.budget(ROOM), [0.6, 0.5, 0.4])
    assert last == 3


def test_trust_is_the_share_of_promised_tokens_that_came() -> None:
    trust = Trust()
    assert trust.share == 1.0
    trust.learn(3.0, 0)
    assert trust.share == 0.5
    trust.learn(3.0, 6)
    assert trust.share == 1.0
    trust.learn(100.0, 0)
    for _ in range(1500):
        trust.fade()
    assert trust.share == pytest.approx(1.0, abs=1e-4)


def test_sure_guesses_tell_nothing_of_those_that_are_left_to_measured_acceptance() -> None:
    plain, mixed = Pace(costs_of(FLAT)), Pace(costs_of(FLAT))
    one, two = plain.stride(PARAMS), mixed.stride(PARAMS, tells_chances=True)
    noise = random.Random(1)
    for _ in range(100):
        right = noise.randrange(2)
        for stride in (one, two):
            budget = stride.budget(ROOM)
            stride.learn(chain([1] * budget.nodes), min(right, budget.nodes))
        worth(two.budget(ROOM), [0.9] * 8)
        two.learn(chain([1] * 8), 8)
    assert one.budget(ROOM).nodes == two.budget(ROOM).nodes
    assert plain.acceptance == mixed.acceptance


def test_bounds_that_were_given_leave_nothing_to_worth_and_the_room_bounds_it() -> None:
    for options in ({"tokens": 3}, {"nodes": 12}):
        budget = Pace(costs_of(MEASURED), **options).stride(PARAMS, tells_chances=True).budget(ROOM)
        assert budget.worth is None and budget.reach == 0
    assert Pace(costs_of(MEASURED)).stride(PARAMS).budget(ROOM).worth is None  # to one that tells no chances none is given
    assert Pace(costs_of(MEASURED)).stride(PARAMS, tells_chances=True).budget(3).reach == 3
    assert Pace(costs_of(MEASURED)).widest == REACH


def test_a_drafter_that_takes_long_to_say_that_it_has_no_guess_is_asked_less_where_nothing_else_pays() -> None:
    pace = Pace(costs_of(MEASURED))
    strides = [pace.stride(PARAMS, tells_chances=True) for _ in range(16)]
    lengths(strides, (0.1,), 20, seed=1)
    assert all(stride.budget(ROOM).nodes == 0 for stride in strides)
    asked = 0.0
    passes = 4000
    for _ in range(passes):
        for stride in strides:
            budget = stride.budget(ROOM)
            if budget.reach:
                stride.miss()
                stride.spend(0.3)
                asked += 0.3
    assert 0 < asked <= 0.02 * passes * pace.costs(16)


def speed(chances: Sequence[float], truth: float, lines: int) -> float:
    """Tokens per time over plain decoding's, of lines that are asked for chains with these chances, each token right with `truth`."""
    pace, noise = Pace(costs_of(MEASURED)), random.Random(lines)
    strides = [pace.stride(PARAMS, tells_chances=True) for _ in range(lines)]
    tokens, time = 0, 0.0
    for _ in range(400):
        rows = lines
        for stride in strides:
            tree = _tree(stride, chances)
            taken = next((i for i in range(len(tree)) if noise.random() >= truth), len(tree))
            if len(tree):
                stride.learn(tree, taken)
            rows += len(tree)
            tokens += 1 + taken
        time += pace.costs(rows)
    return tokens / time / (lines / pace.costs(lines))


def _tree(stride: Stride, chances: Sequence[float]) -> DraftTree:
    budget = stride.budget(ROOM)
    count = budget.worth(chances) if budget.worth is not None else 0
    return chain([1] * count) if count else EMPTY


@pytest.mark.parametrize("lines", [1, 4, 16])
@pytest.mark.parametrize("truth", [0.0, 0.3, 0.6, 0.95])
def test_whatever_is_promised_it_is_never_slower_than_plain_by_three_per_cent_for_long(lines: int, truth: float) -> None:
    for promised in (0.3, 0.6, 0.95):
        chances = [promised**n for n in range(1, REACH + 1)]
        assert speed(chances, truth, lines) >= 0.97, promised
    assert speed([0.95**n for n in range(1, REACH + 1)], 0.95, 1) > 2.5
