"""Worth: as many guesses of known chance as pay for their rows; what came true decides how far a drafter is believed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.test_pace import FLAT, MEASURED, PARAMS, ROOM, costs_of, lengths
from toolkit.draft.contract import NEVER, Budget
from toolkit.draft.tree import DraftTree, chain
from toolkit.engine.pace import LONGEST, Pace
from toolkit.engine.stride import _GOES_ON, Stride
from toolkit.engine.worth import REACH, Trust, worthwhile

SHARES = st.lists(st.floats(0, 10), max_size=8)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(-5, 10)), max_size=8))
def test_the_number_of_guesses_is_the_best_of_all(pairs: Sequence[tuple[float, float]]) -> None:
    gains, prices = [gain for gain, _ in pairs], [price for _, price in pairs]
    profits = [0.0, *(sum(gains[:n]) - prices[n - 1] for n in range(1, len(pairs) + 1))]
    count, left = worthwhile(gains, prices)
    assert profits[count] == pytest.approx(max(profits)) and left == pytest.approx(profits[count])
    assert worthwhile(gains, prices, least=max(profits)) == (0, 0.0)


def sure(count: int, chances: Sequence[float]) -> DraftTree:
    """A chain that was sized by its chances."""
    return DraftTree((1,) * count, tuple(range(-1, count - 1)), None, tuple(chances[:count]))


def passes(pace: Pace, rows: int = 1, lines: int = 1) -> None:
    """A pass that takes what it always takes."""
    pace.costs.learn(rows, pace.costs(rows), drafted=rows - lines)


def worth(budget: Budget, chances: Sequence[float]) -> int:
    assert budget.worth is not None and budget.reach == REACH
    return budget.worth(chances)


def test_sure_guesses_are_taken_far_ahead_unsure_ones_not_at_all_and_fewer_where_more_lines_run() -> None:
    counts = []
    for lines in (1, 4, 16):
        pace = Pace(costs_of(MEASURED))
        stride, *_ = [Stride(pace, PARAMS, "some") for _ in range(lines)]
        lengths([stride], (0.4,), 60, seed=1)
        falling = [0.95**n for n in range(1, REACH + 1)]
        budget = stride.budget(ROOM)
        counts.append(worth(budget, falling))
        assert worth(budget, [0.05] * REACH) == 0 and worth(budget, []) == 0
    assert counts[0] >= 12 and counts == sorted(counts, reverse=True) and counts[2] < counts[0]


def test_promises_that_do_not_come_true_are_believed_less_and_that_is_forgotten() -> None:
    pace = Pace(costs_of(MEASURED))
    stride = Stride(pace, PARAMS, "some")
    taken = []
    for _ in range(12):
        n = worth(stride.budget(ROOM), [0.6, 0.5, 0.4])
        taken.append(n)
        if n:
            stride.learn(sure(n, [0.6, 0.5, 0.4]), 0)
    assert taken[0] == 3 and 0 in taken
    for _ in range(1500):
        last = worth(stride.budget(ROOM), [0.6, 0.5, 0.4])
    assert last == 3


def test_trust_is_the_share_of_promised_tokens_that_came() -> None:
    trust = Trust(Trust())
    assert trust.share == 1.0
    trust.learn(2.0, 0)
    assert trust.share == (0 + 2 * 0.5) / (2 + 2)  # what all requests together have counts for two tokens
    trust.learn(2.0, 4)
    assert trust.share == 1.0
    trust.learn(100.0, 0)
    for _ in range(8000):
        trust.fade()
    assert trust.share == pytest.approx(1.0, abs=1e-4)


def test_a_new_request_trusts_a_drafter_as_the_others_do_until_it_has_seen_for_itself() -> None:
    pace = Pace(costs_of(MEASURED))
    stride = Stride(pace, PARAMS, "all")
    for _ in range(40):
        stride.budget(ROOM)
        stride.learn(sure(4, [0.8, 0.7, 0.6, 0.5]), 1)
    later = Stride(pace, PARAMS, "all")._trusts[False]
    assert later.share == pytest.approx(1 / 2.6, abs=0.03)
    later.learn(20.0, 20)
    assert later.share > 0.9


def test_sure_guesses_tell_nothing_of_those_that_are_left_to_measured_acceptance() -> None:
    plain, mixed = Pace(costs_of(FLAT)), Pace(costs_of(FLAT))
    one, two = Stride(plain, PARAMS), Stride(mixed, PARAMS, "some")
    noise = random.Random(1)
    for _ in range(100):
        right = noise.randrange(2)
        for stride in (one, two):
            budget = stride.budget(ROOM)
            stride.spend(0.5 * budget.nodes)
            stride.learn(chain([1] * budget.nodes), min(right, budget.nodes))
        two.budget(ROOM)
        two.learn(sure(8, [0.9] * 8), 8)
    assert plain.drafts.guess_s == 0.5
    assert one.budget(ROOM).nodes == two.budget(ROOM).nodes
    assert plain.acceptance == mixed.acceptance and plain.drafts.guess_s == mixed.drafts.guess_s


def test_what_a_grammar_cut_was_never_promised() -> None:
    tree = sure(4, [0.9, 0.6, 0.5, 0.35]).keep([0])
    pace = Pace(costs_of(MEASURED))
    stride = Stride(pace, PARAMS, "all")
    for _ in range(50):
        stride.budget(ROOM)
        stride.learn(tree, 1)
    assert stride._trusts[False].share == pytest.approx(1.1, abs=0.02)


@pytest.mark.parametrize("times", [0.1, 1.0, 4.0])
def test_the_price_of_a_guess_is_todays_whatever_it_was_before(times: float) -> None:
    chances = [[0.9**n for n in range(1, REACH + 1)], [0.6, 0.4, 0.3]]
    counts = []
    for scale in (1.0, times):
        pace = Pace(costs_of(MEASURED))
        stride = Stride(pace, PARAMS, "all")
        worth(stride.budget(ROOM), [0.5])
        pace.costs = costs_of({rows: scale * seconds for rows, seconds in MEASURED.items()})
        counts.append([worth(stride.budget(ROOM), each) for each in chances])
    assert counts[0] == counts[1] and min(counts[0]) > 0


def test_a_drafter_all_of_whose_chances_are_known_is_asked_for_nothing_else_and_rests_where_nothing_is_sure() -> None:
    pace = Pace(costs_of(MEASURED))
    stride = Stride(pace, PARAMS, "all")
    for _ in range(50):
        budget = stride.budget(ROOM)
        assert (budget.nodes, budget.depth) == (0, 0) and worth(budget, [0.1]) == 0
    assert worth(stride.budget(ROOM), [0.3]) == 1  # at the speed of plain decoding a second row costs .235 tokens


def test_bounds_that_were_given_leave_nothing_to_worth_and_the_room_bounds_it() -> None:
    for options in ({"tokens": 3}, {"nodes": 12}):
        budget = Stride(Pace(costs_of(MEASURED), **options), PARAMS, "some").budget(ROOM)
        assert budget.worth is None and budget.reach == 0
    assert Stride(Pace(costs_of(MEASURED)), PARAMS).budget(ROOM).worth is None  # to one that tells no chances none is given
    assert Stride(Pace(costs_of(MEASURED)), PARAMS, "some").budget(3).reach == 3
    widest = [Pace(costs_of(MEASURED)).widest(chances) for chances in ("all", "some", "none")]  # type: ignore[arg-type]
    assert widest == [REACH, REACH, LONGEST]


def test_a_drafter_that_takes_long_to_say_that_it_has_no_guess_is_asked_less_where_nothing_else_pays() -> None:
    pace = Pace(costs_of(MEASURED))
    strides = [Stride(pace, PARAMS, "all") for _ in range(16)]
    lengths(strides, (0.1,), 20, seed=1)
    assert all(stride.budget(ROOM).nodes == 0 for stride in strides)
    asked, count = 0.0, 4000
    for _ in range(count):
        for stride in strides:
            budget = stride.budget(ROOM)
            if budget.reach:
                stride.asked(1.0)
                stride.spend(0.3)
                asked += 0.3
        passes(pace, 16, 16)
    assert 0 < asked <= 0.008 * count * pace.costs(16)


def resting(lines: int, seconds: float, saved: float, passes_made: int = 4000) -> tuple[float, float]:
    """Looks of a line in a pass, and the share of all time that passes of a draft model take which bring `saved` for `seconds`."""
    pace = Pace(costs_of(MEASURED))
    strides = [Stride(pace, PARAMS, "all") for _ in range(lines)]
    pace.asks.count, pace.asks.seconds = 100, 0.5
    pace.passes.count, pace.passes.seconds, pace.passes.saved, pace.passes.pays = 100, seconds, saved, False
    looks, drafted = 0, 0.0
    for _ in range(passes_made):
        for stride in strides:
            stride.hear(1)
            if stride.rests:
                continue
            looks += 1
            budget = stride.budget(ROOM)
            if budget.worth is not None and budget.least < NEVER:
                budget.worth([0.05], passes=1)
                stride.asked(1.0)
                stride.spend(seconds)
                drafted += seconds
        passes(pace, lines, lines)
    return looks / lines / passes_made, drafted / (drafted + passes_made * pace.costs(lines))


def test_the_more_lines_rest_the_more_rarely_each_of_them_looks_again() -> None:
    looks = [resting(lines, 2.0, 0.01)[0] for lines in (1, 4, 8, 16)]
    assert looks == sorted(looks, reverse=True)
    assert looks[1] < 0.25 and looks[2] < 0.13 and looks[3] < 0.07


@pytest.mark.parametrize(("lines", "most"), [(1, 0.012), (4, 0.004), (8, 0.004), (16, 0.004)])
def test_trials_of_a_draft_model_that_never_pays_take_the_smaller_a_share_the_more_lines_wait_for_them(
    lines: int, most: float
) -> None:
    share = resting(lines, 2.0, 0.01, passes_made=20_000)[1]
    assert 0 < share <= most


def speed(chances: Sequence[float], truth: float, lines: int) -> float:
    """Tokens per time over plain decoding's, of lines that are asked for chains with these chances, each token right with `truth`."""
    pace, noise = Pace(costs_of(MEASURED)), random.Random(lines)
    strides = [Stride(pace, PARAMS, "all") for _ in range(lines)]
    tokens, time = 0, 0.0
    for _ in range(400):
        rows = lines
        for stride in strides:
            budget = stride.budget(ROOM)
            tree = sure(budget.worth(chances) if budget.worth is not None else 0, chances)
            taken = right(noise, [truth] * len(tree))
            if len(tree):
                stride.learn(tree, taken)
            rows += len(tree)
            tokens += 1 + taken
        time += pace.costs(rows)
        passes(pace, rows, lines)
    return tokens / time / (lines / pace.costs(lines))


def right(noise: random.Random, shares: Sequence[float]) -> int:
    """Tokens of a chain before the first wrong one."""
    return next((i for i, share in enumerate(shares) if noise.random() >= share), len(shares))


@pytest.mark.parametrize("lines", [1, 4, 16])
@pytest.mark.parametrize("truth", [0.0, 0.3, 0.6, 0.95])
def test_whatever_is_promised_it_is_never_slower_than_plain_by_three_per_cent_for_long(lines: int, truth: float) -> None:
    for promised in (0.3, 0.6, 0.95):
        chances = [promised**n for n in range(1, REACH + 1)]
        assert speed(chances, truth, lines) >= 0.97, promised
    assert speed([0.95**n for n in range(1, REACH + 1)], 0.95, 1) > 2.5


def speed_of_both(chance: float, acceptance: float, *, known: bool) -> float:
    """Tokens per time where every second pass has one guess of known chance, which comes true as often, and a head has k guesses in any."""
    pace, noise = Pace(costs_of(MEASURED)), random.Random(3)
    stride = Stride(pace, PARAMS, "some" if known else "none")
    draft, tokens, time = 0.5, 0, 0.0
    for at in range(2000):
        budget = stride.budget(ROOM)
        if known and at % 2 and worth(budget, [chance]):
            tree, taken = sure(1, [chance]), right(noise, [chance])
        else:
            tree, taken = chain([1] * budget.nodes), right(noise, [acceptance] * budget.nodes)
            stride.spend(draft * budget.nodes)
            time += draft * budget.nodes
        if len(tree):
            stride.learn(tree, taken)
        tokens += 1 + taken
        time += pace.costs(1 + len(tree))
    return tokens / time


@pytest.mark.parametrize("acceptance", [0.1, 0.4, 0.8])
@pytest.mark.parametrize("chance", [0.3, 0.5, 0.7, 0.95])
def test_a_guess_that_is_worth_less_than_the_heads_does_not_take_their_place(chance: float, acceptance: float) -> None:
    alone = speed_of_both(chance, acceptance, known=False)
    assert speed_of_both(chance, acceptance, known=True) >= 0.97 * alone


def test_what_the_loop_spends_on_a_pass_with_a_draft_is_part_of_its_price() -> None:
    pace = Pace(costs_of(MEASURED))
    stride = Stride(pace, PARAMS, "some")
    assert pace.drafts.handle_s == 0.0
    stride.handle(3.0, drafted=True)
    assert pace.drafts.handle_s == 0.0  # nothing is known of passes without one
    for seconds in (1.0, 1.0, 50.0):
        stride.handle(seconds, drafted=False)
    assert pace.drafts.handle_s == 2.0
    rates, prices = pace.rates([0.5]), pace.prices(2)
    assert pace.drafts.plain_s == 1.0
    assert rates == pytest.approx([1 / (8.5 + 1.0), 1.5 / (10.5 + 1.0 + 2.0)]) and prices == pytest.approx([4.0, 6.0])
    stride.handle(0.0, drafted=True)
    stride.handle(0.0, drafted=True)
    assert pace.drafts.handle_s == 0.0


def test_a_drafter_that_is_slow_to_say_no_is_asked_all_the_same_where_its_guesses_save_more() -> None:
    pace = Pace(costs_of(MEASURED))
    stride = Stride(pace, PARAMS, "all")
    falling = [0.95**n for n in range(1, REACH + 1)]
    asked = 0
    for at in range(400):
        budget = stride.budget(ROOM)
        asked += budget.reach > 0
        if budget.reach:
            if at % 2:
                n = worth(budget, falling)
                stride.learn(sure(n, falling), n)
            stride.asked(1.0)
            stride.spend(0.3)
    assert pace.asks.seconds > 0.02 * pace.costs(1) and asked > 380


def passes_asked(chances: Sequence[float], seconds: float, *, cheap: bool = False) -> float:
    """Share of passes in which a draft model is run, whose guesses have these chances and cost `seconds` a pass."""
    pace = Pace(costs_of(MEASURED))
    stride = Stride(pace, PARAMS, "all")
    asked = 0
    for _ in range(800):
        budget = stride.budget(ROOM)
        stride.hear(1)
        if cheap and budget.reach:  # an n-gram part that always has a guess which pays, half of the time
            assert budget.worth is not None
            n = budget.worth([0.9, 0.8])
            stride.learn(sure(n, [0.9, 0.8]), n)
            stride.asked(1.0)
            stride.spend(0.0001)
            budget = stride.budget(ROOM)
        if budget.reach and budget.least < NEVER:
            assert budget.worth is not None
            asked += 1
            n = budget.worth(chances, passes=1)
            if n:
                stride.learn(sure(n, chances), round(sum(chances[:n])))
            stride.asked(1.0)
            stride.spend(seconds)
    return asked / 800


def test_passes_of_a_draft_model_are_made_where_they_bring_more_than_they_cost() -> None:
    cost = costs_of(MEASURED)(1)
    assert passes_asked([0.95, 0.9], 0.1 * cost) > 0.95
    assert 0.01 < passes_asked([0.02], 0.1 * cost) < 0.12
    assert passes_asked([0.95, 0.9], 3 * cost) < 0.1
    # what another part brings says nothing of these
    assert 0.01 < passes_asked([0.02], 0.1 * cost, cheap=True) < 0.24  # two budgets a pass
    assert passes_asked([0.95, 0.9], 0.1 * cost, cheap=True) > 0.95


def speed_with_passes(promised: float, truth: float, lines: int, price: float) -> float:
    """Tokens per time over plain decoding's, of lines whose draft model makes guess after guess, each promised and each right with a chance, at `price`
    each in passes of one row.
    """
    pace, noise = Pace(costs_of(MEASURED)), random.Random(lines)
    strides = [Stride(pace, PARAMS, "all") for _ in range(lines)]
    tokens, time, seconds = 0, 0.0, price * costs_of(MEASURED)(1)
    for _ in range(1200):
        rows = lines
        for stride in strides:
            budget, tree, taken = stride.budget(ROOM), sure(0, []), 0
            if budget.worth is not None and budget.least < NEVER:
                chances = [promised]
                while chances[-1] >= budget.least and len(chances) < 8:
                    chances.append(chances[-1] * promised)
                tree = sure(budget.worth(chances, passes=len(chances)), chances)
                taken = right(noise, [truth] * len(tree))
                stride.asked(1.0)
                stride.spend(seconds * len(chances))
                time += seconds * len(chances)
            if len(tree):
                stride.learn(tree, taken)
            stride.hear(1 + taken)
            rows += len(tree)
            tokens += 1 + taken
        time += pace.costs(rows)
        passes(pace, rows, lines)
    return tokens / time / (lines / pace.costs(lines))


@pytest.mark.parametrize("lines", [1, 4, 16])
@pytest.mark.parametrize("truth", [0.0, 0.3, 0.6, 0.95])
@pytest.mark.parametrize("price", [0.02, 0.15, 0.6])
def test_guesses_that_cost_passes_are_never_slower_than_plain_by_three_per_cent_for_long(
    lines: int, truth: float, price: float
) -> None:
    for promised in (0.3, 0.6, 0.95):
        assert speed_with_passes(promised, truth, lines, price) >= 0.97, promised
    assert lines > 1 or truth < 0.9 or price > 0.2 or speed_with_passes(0.95, 0.95, 1, price) > 1.5


def test_a_drafter_without_passes_is_not_asked_on_account_of_passes_that_nobody_makes() -> None:
    pace = Pace(costs_of(MEASURED))
    stride = Stride(pace, PARAMS, "all")
    asked = 0
    for _ in range(800):
        if stride.budget(ROOM).reach:
            asked += 1
            stride.asked(1.0)
            stride.spend(pace.costs(1))
        passes(pace)
    assert 0 < asked < 80


def test_a_draft_model_that_is_dear_in_the_first_pass_after_a_rest_alone_is_found_to_pay_again() -> None:
    """After a rest it reads, and nothing that it needs is in the processor's caches: one pass now and then would say for ever that it does not pay."""
    pace = Pace(costs_of(MEASURED))
    stride, rested, asked = Stride(pace, PARAMS, "all"), True, 0
    # what was seen of other texts, or in an hour in which others wanted the machine
    pace.passes.count, pace.passes.seconds, pace.passes.saved = 100, 6.0, 4.0
    for _ in range(4000):
        stride.hear(2)
        budget = stride.budget(ROOM)
        allowed = budget.worth is not None and budget.least < NEVER
        if allowed:
            assert budget.worth is not None
            n = budget.worth([0.95] * 2, passes=1)
            stride.asked(1.0)
            stride.spend(30.0 if rested else 1.0)
            stride.learn(sure(n, [0.95] * 2), n)
            asked += 1
        rested = not allowed
        passes(pace)
    assert asked > 2000


@pytest.mark.parametrize(("prompt", "room", "read"), [(100, 15, False), (100, 60, True), (400, 60, False), (16, 2, True)])
def test_a_prompt_is_read_for_a_draft_model_only_where_the_text_is_long_enough_to_pay_for_it(
    prompt: int, room: int, read: bool
) -> None:
    pace = Pace(costs_of(MEASURED))
    stride = Stride(pace, PARAMS, "all")
    pace.passes.count, pace.passes.seconds, pace.passes.saved = 100, 0.5, 1.0
    pace.drafts.read_s = 0.1
    stride.hear(prompt)
    budget = stride.budget(room)
    assert (budget.worth is not None and budget.least < NEVER) == read


@pytest.mark.parametrize(("room", "read"), [(16, True), (4, False)])
def test_while_nothing_is_known_a_prompt_is_read_for_a_text_that_has_room_for_some_passes(room: int, read: bool) -> None:
    pace = Pace(costs_of(MEASURED))
    pace.drafts.read_s = 100.0
    stride = Stride(pace, PARAMS, "all")
    stride.hear(1000)
    budget = stride.budget(room)
    assert (budget.worth is not None and budget.least < NEVER) == read


def test_asks_that_always_follow_a_prompt_are_not_free_of_charge() -> None:
    pace = Pace(costs_of(MEASURED))
    pace.drafts.read_s = 0.01
    for _ in range(6):
        stride = Stride(pace, PARAMS, "all")
        stride.hear(1000)
        assert stride.budget(ROOM).worth is not None
        stride._passes = 1
        stride.asked(1.0)
        stride.spend(10.0 + 0.5)
        assert pace.passes.count == 1 or pace.passes.seconds > 0.1
        stride.close()


def test_a_text_for_which_a_draft_model_never_finds_anything_gives_it_up_before_the_others_do() -> None:
    pace = Pace(costs_of(MEASURED))
    stride = Stride(pace, PARAMS, "all")
    pace.passes.count, pace.passes.seconds, pace.passes.saved = 200, 1.0, 2.0
    pace.drafts.read_s = 0.001

    def asks(stride: Stride) -> bool:
        budget = stride.budget(ROOM)
        return budget.worth is not None and budget.least < NEVER

    asked = 0
    while asked < 40 and asks(stride):
        stride._passes, stride._saves = 1, 0.0  # what `worth` notes of guesses that are worth nothing
        stride.asked(1.0)
        stride.spend(1.0)
        stride.hear(1)
        asked += 1
    assert 4 < asked < 15
    stride.close()
    assert asks(Stride(pace, PARAMS, "all"))


def asks_by_line(lines: int, passes_all: int, brings: Callable[[int, int], float], costs: float = 0.2) -> list[list[int]]:
    """In which passes each line asks its draft model, an ask of which brings `brings(line, pass)` for what one takes."""
    pace = Pace(costs_of(MEASURED))
    pace.drafts.read_s = 0.001 * pace.costs(1)
    strides = [Stride(pace, PARAMS, "all") for _ in range(lines)]
    price = costs * pace.costs(1)
    pace.passes.count, pace.passes.seconds, pace.passes.saved = 200, price, 4 * price
    found: list[list[int]] = [[] for _ in range(lines)]
    for at in range(passes_all):
        for line, stride in enumerate(strides):
            stride.hear(1)
            if stride.rests:
                continue
            budget = stride.budget(1000)
            if budget.worth is not None and budget.least < NEVER:
                found[line].append(at)
                stride._passes, stride._saves = 1, brings(line, at) * price  # what `worth` notes
                stride.asked(1.0)
                stride.spend(price)
        passes(pace, lines, lines)
    return found


@pytest.mark.parametrize("others", [0, 1, 3, 7])
def test_a_line_that_gave_its_draft_model_up_tries_again_whatever_other_lines_do(others: int) -> None:
    asked = asks_by_line(1 + others, 2000, lambda line, at: 4.0 if line or at > 60 else 0.0)
    vain = sum(at <= 60 for at in asked[0])
    assert 4 < vain < 30
    assert sum(at > 1000 for at in asked[0]) > 600


def test_a_line_for_which_asking_never_pays_asks_seldom_beside_lines_for_which_it_does() -> None:
    asked = asks_by_line(4, 3000, lambda line, at: 4.0 if line else 0.0)
    assert 0 < sum(at > 200 for at in asked[0]) < 0.1 * 2800
    assert all(len(each) > 2900 for each in asked[1:])


def test_what_a_request_learned_alone_says_nothing_once_many_run() -> None:
    pace = Pace(costs_of(MEASURED))
    stride = Stride(pace, PARAMS, "all")

    def ask(brings: float) -> bool:
        budget = stride.budget(1000)
        if budget.worth is None or budget.least >= NEVER:
            return False
        stride._passes, stride._saves = 1, brings
        stride.asked(1.0)
        stride.spend(1.0)
        return True

    assert all(ask(4.0) for _ in range(200))
    beside = [Stride(pace, PARAMS, "all") for _ in range(7)]
    pace.passes.count, pace.passes.seconds, pace.passes.saved, pace.passes.pays = 200, 1.0, 0.2, False
    assert sum(ask(0.2) for _ in range(50)) == 0
    assert len(beside) == pace.lines - 1


def test_one_more_guess_is_made_where_what_goes_before_is_likely_enough_for_its_price() -> None:
    least = []
    for seconds in (0.05, 0.2, 0.8):
        pace = Pace(costs_of(MEASURED))
        stride = Stride(pace, PARAMS, "all")
        for _ in range(12):
            budget = stride.budget(ROOM)
            assert budget.worth is not None
            budget.worth([0.9], passes=2)
            stride.asked(1.0)
            stride.spend(2 * seconds * pace.costs(1))
        row = pace.prices(2)
        price = (row[1] - row[0] + pace.drafts.guess_s) / pace.costs(1)
        assert pace.drafts.guess_s == pytest.approx(seconds * pace.costs(1))
        least.append(stride._least())
        assert least[-1] == pytest.approx(min(1.0, price / _GOES_ON))
    assert least == sorted(least) and least[0] < 0.6 and least[-1] == 1.0


def asked_share(slow: float, cut: float = 1.0, passes: int = 12_000) -> tuple[float, int]:
    """Share of the last 2,000 passes in which a draft model is asked, and its longest rest in passes: .15 passes an ask, the first 30
    `slow` times as long; a grammar leaves a share `cut` of its guesses, the others come true as promised.
    """
    pace, noise = Pace(costs_of(MEASURED)), random.Random(4)
    asked: list[int] = []
    count = 0
    stride = Stride(pace, PARAMS, "all")
    for at in range(passes):
        if at % 300 == 0:  # another request
            stride.close()
            stride = Stride(pace, PARAMS, "all")
            stride.hear(100)
        stride.hear(1)
        if stride.rests:
            continue
        budget = stride.budget(ROOM)
        if not budget.reach or budget.least >= NEVER:
            continue
        assert budget.worth is not None
        count += 1
        asked.append(at)
        chances = [0.6, 0.36]
        n = budget.worth(chances, passes=1)
        left = sure(n if noise.random() < cut else 0, chances)
        if len(left):
            stride.learn(left, right(noise, [0.6] * len(left)))
        stride.asked(len(left) / n if n else 1.0)
        stride.spend(0.15 * pace.costs(1) * (slow if count <= 30 else 1.0))
    return sum(at >= passes - 2000 for at in asked) / 2000, max(b - a for a, b in itertools.pairwise(asked))


@pytest.mark.parametrize("slow", [1.0, 15.0])
def test_a_draft_model_that_was_slow_at_first_is_asked_again_once_it_is_not(slow: float) -> None:
    share, rest = asked_share(slow)
    assert share > 0.5
    assert slow == 1.0 or rest > 1000  # in between it was given up


def test_guesses_that_a_grammar_cuts_save_nothing() -> None:
    assert asked_share(1.0, cut=0.05)[0] < 0.1


def test_parts_of_a_drafter_are_believed_each_for_itself() -> None:
    stride = Stride(Pace(costs_of(MEASURED)), PARAMS, "all")
    for _ in range(20):
        budget = stride.budget(ROOM)
        assert budget.worth is not None
        n = budget.worth([0.9])
        stride.learn(sure(n, [0.9]), 0)  # copies that never come true
    budget = stride.budget(ROOM)
    assert budget.worth is not None
    assert budget.worth([0.6]) == 0 and budget.worth([0.6], passes=1) == 1
    assert stride._trusts[True].share == 1.0 > 2 * stride._trusts[False].share
