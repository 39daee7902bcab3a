"""What becomes of drawn drafts: the law against enumeration, and each way to break the rule that frequencies hardly show."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch

from toolkit.contracts import SamplingParams
from toolkit.draft.contract import Budget, Commit
from toolkit.draft.tree import DraftTree, chain
from toolkit.gate import acceptance
from toolkit.gate.acceptance import Noted, Step, judge
from toolkit.sample.accept import choose, invert, residual

P = {0: 0.4, 1: 0.3, 2: 0.2, 3: 0.1}
Q = torch.tensor([[0.3, 0.2, 0.1, 0.4], [0.1, 0.2, 0.7, 0.0]], dtype=torch.float64)
TWO = DraftTree((3, 2), (-1, -1), Q)  # two siblings, drawn without replacement


class Fixed(random.Random):
    """Always the same number."""

    def __init__(self, number: float) -> None:
        super().__init__(0)
        self.number = number

    def random(self) -> float:
        return self.number


def numbers(tree: DraftTree, token: int, number: float) -> list[float]:
    return [value for kind, value in acceptance._numbers(Step((), tree, (token,)), {(): P}, Fixed(number)) if kind != "reuse"]


def test_every_outcome_has_its_own_part_of_the_unit_interval_as_long_as_it_is_likely() -> None:
    """The slow twin: the rule written out for two siblings."""
    rest, taken, whole = dict(P), 1.0, 0.0
    for place, drawn in enumerate(TWO.tokens):
        share = min(1.0, rest[drawn] / float(Q[place][drawn]))
        low, high = numbers(TWO, drawn, 0.0), numbers(TWO, drawn, 1.0)
        assert (low[place], high[place]) == pytest.approx((0.0, share)) and len(low) == place + 1
        whole += taken * share
        taken *= 1 - share
        left = {token: max(0.0, each - float(Q[place][token])) for token, each in rest.items()}
        rest = {token: each / sum(left.values()) for token, each in left.items()}
    ends = [(numbers(TWO, token, 0.0)[-1], numbers(TWO, token, 1.0)[-1]) for token in (0, 1)]
    assert [high - low for low, high in ends] == pytest.approx([rest[0], rest[1]]) and ends[0][1] == pytest.approx(ends[1][0])
    assert whole + taken * (rest[0] + rest[1]) == pytest.approx(1.0)


@pytest.mark.parametrize("refused", [0.0, 0.25, 0.4, 0.9])
def test_a_bet_wins_nothing_on_average_where_the_rule_is_kept(refused: float) -> None:
    means, below = [0.0, 0.0], 0.0
    for own in P.values():
        for side, bet in enumerate(acceptance._bets(below, own, refused)):
            means[side] += own * math.exp(bet)
        below += own
    assert means == pytest.approx([1.0, 1.0])


Rule = Callable[[torch.Tensor, torch.Tensor, int, torch.Generator], tuple[int, int | None]]


def right(p: torch.Tensor, q: torch.Tensor, drafted: int, dice: torch.Generator) -> tuple[int, int | None]:
    return choose(p.log(), SamplingParams(temperature=1.0), dice, [drafted], q[None])


def credulous(p: torch.Tensor, q: torch.Tensor, drafted: int, dice: torch.Generator) -> tuple[int, int | None]:
    token, place = right(p, q, drafted, dice)
    return (drafted, 0) if float(torch.rand((), generator=dice)) < 0.6 else (token, place)


def from_the_whole(p: torch.Tensor, q: torch.Tensor, drafted: int, dice: torch.Generator) -> tuple[int, int | None]:
    token, place = right(p, q, drafted, dice)
    return (token, place) if place is not None else (invert(p, dice), None)


def reused(up: bool) -> Rule:
    def rule(p: torch.Tensor, q: torch.Tensor, drafted: int, dice: torch.Generator) -> tuple[int, int | None]:
        at = float(torch.rand((), generator=dice, dtype=torch.float64))
        if at * float(q[drafted]) < float(p[drafted]):
            return drafted, 0
        return int(torch.searchsorted(residual(p, q).cumsum(0), at if up else 1 - at, right=True)), None

    return rule


def steps(rule: Rule, count: int) -> tuple[list[Step], dict[tuple[int, ...], dict[int, float]]]:
    dice = torch.Generator().manual_seed(7)
    found, known = [], {}
    for number in range(count):
        p, q = (torch.rand(8, generator=dice, dtype=torch.float64) ** 2 for _ in range(2))
        p, q = p / p.sum(), q / q.sum()
        drafted = invert(q, dice)
        token, _ = rule(p, q, drafted, dice)
        known[(number,)] = dict(enumerate(p.tolist()))
        found.append(Step((number,), chain([drafted], q[None]), (token,)))
    return found, known


@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        (right, set()),
        (credulous, {"decisions"}),
        (from_the_whole, {"corrections"}),
        (reused(True), {"reuse"}),
        (reused(False), {"reuse"}),
    ],
)
def test_a_verifier_that_breaks_the_rule_is_found_by_the_law_that_it_breaks(rule: Rule, wrong: set[str]) -> None:
    found, known = steps(rule, 600)
    told = judge(found, known, random.Random(0), 24, 256)
    assert wrong <= {kind for kind, row in told.items() if row["p"] <= 1e-4 / 3}
    assert wrong or all(row["p"] > 1e-3 for row in told.values())
    assert told["decisions"]["count"] > 256 and told["corrections"]["count"] >= told["reuse"]["count"] > 100


def test_a_pass_in_which_a_text_may_end_is_not_counted_whatever_came() -> None:
    found, known = steps(right, 40)
    assert judge(found, known, random.Random(0), 3, 64)["corrections"]["count"] == 0
    assert judge(found, known, random.Random(0), 4, 64)["corrections"]["count"] > 0


class Single:
    """A drafter that proposes one token."""

    closed = False

    def observe(self, commit: Commit) -> None:
        self.seen = commit.tokens

    def propose(self, budget: Budget) -> DraftTree:
        return chain([5])

    def close(self) -> None:
        self.closed = True


def test_a_noted_drafter_is_the_drafter_and_leaves_a_step_for_each_of_its_trees() -> None:
    class Source:
        def open(self, seed: int) -> Single:
            return Single()

    source, left = Source(), list[Step]()
    with acceptance.noted(source, 2, left):
        drafter = source.open(1)
        assert isinstance(drafter, Noted)
        drafter.observe(Commit((7, 8, 9)))
        assert drafter.propose(Budget(1, 1, SamplingParams())).tokens == (5,)
        drafter.observe(Commit((5, 6)))
        drafter.observe(Commit((4,)))
        drafter.close()
    assert [(each.before, each.tree.tokens, each.emitted) for each in left] == [((9,), (5,), (5, 6))]
    inner = drafter._drafter
    assert isinstance(inner, Single) and inner.seen == (4,) and inner.closed
    assert isinstance(source.open(1), Single)
