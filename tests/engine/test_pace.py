"""Pace: the draft length is the best there is for given costs and acceptance, changes only for a gain, and is none where none pays.

No times are taken here: costs are tables, acceptance is given or drawn from a seeded generator.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import pytest

from toolkit.contracts import SamplingParams
from toolkit.draft.tree import chain
from toolkit.engine.acceptance import Acceptance
from toolkit.engine.calibrate import attention
from toolkit.engine.draft_costs import DraftCosts
from toolkit.engine.pace import LONGEST, Pace
from toolkit.engine.pass_costs import PassCosts
from toolkit.engine.stride import EXPLORE, LOSS, MARGIN, Stride

PARAMS = SamplingParams()
ROOM = 64
# Milliseconds of a pass by its rows: measured on two CPU cores with the default model in int8; a GPU's flat start; all rows alike.
MEASURED = {1: 8.5, 2: 10.5, 3: 12.5, 4: 14.0, 6: 16.5, 8: 20.0, 12: 26.0, 16: 33.0, 24: 48.0, 32: 64.0, 48: 96.0, 64: 128.0}
FLAT = {1: 10.0, 16: 10.5, 64: 12.0}
STEEP = {1: 1.0, 64: 64.0}
TABLES = {"measured": MEASURED, "flat": FLAT, "steep": STEEP}
ACCEPTANCES = ((0.457, 0.4), (0.1,), (0.3,), (0.7,), (0.9,), (0.99,), (0.9, 0.2), (0.2, 0.9), (0.0,), (1.0,))


def costs_of(table: Mapping[int, float]) -> PassCosts:
    costs = PassCosts()
    for rows, seconds in table.items():
        costs.learn(rows, seconds)
    return costs


def each(acceptance: Sequence[float]) -> list[float]:
    """At every position; the last one given holds for all behind it."""
    return [acceptance[min(position, len(acceptance) - 1)] for position in range(LONGEST)]


def given(stride: Stride, acceptance: Sequence[float]) -> None:
    """The request has seen so much that its acceptance is exactly this."""
    stride._news = True
    stride._wait = max(stride._wait, 16)
    stride._acceptance = Acceptance(memory=1.0, tried=[1e12] * LONGEST, taken=[1e12 * share for share in each(acceptance)])


# --- slow twins -------------------------------------------------------------------------------------------------------


def expected_by_enumeration(acceptance: Sequence[float], k: int) -> float:
    return _enumerated(tuple(acceptance), k)


@cache
def _enumerated(acceptance: tuple[float, ...], k: int) -> float:
    mean = 0.0
    for pattern in itertools.product((True, False), repeat=k):
        chance = math.prod(share if right else 1 - share for share, right in zip(acceptance, pattern, strict=False))
        mean += chance * (1 + next((i for i, right in enumerate(pattern) if not right), k))
    return mean


def cost_by_interpolation(table: Mapping[int, float], rows: int) -> float:
    largest = max(table)
    if rows > largest:
        return table[largest] / largest * rows
    return float(np.interp(rows, list(table), list(table.values())))


def rates_by_brute_force(table: Mapping[int, float], acceptance: Sequence[float], lines: int, draft: float) -> list[float]:
    return [
        lines * expected_by_enumeration(acceptance, k) / (cost_by_interpolation(table, lines * (1 + k)) + lines * k * draft)
        for k in range(LONGEST + 1)
    ]


@pytest.mark.parametrize("name", list(TABLES))
@pytest.mark.parametrize("acceptance", ACCEPTANCES, ids=str)
def test_the_chosen_length_is_the_best_of_all(name: str, acceptance: tuple[float, ...]) -> None:
    for lines, draft in itertools.product((1, 2, 4, 8, 16, 40), (0.0, 0.7)):
        pace = Pace(costs_of(TABLES[name]))
        pace.drafts.guess_s = draft
        strides = [Stride(pace, PARAMS) for _ in range(lines)]
        given(strides[0], acceptance)
        rates = rates_by_brute_force(TABLES[name], each(acceptance), lines, draft)
        assert pace.rates(each(acceptance)) == pytest.approx(rates), (lines, draft)
        budget = strides[0].budget(ROOM)
        assert budget.nodes == budget.depth
        if max(rates) > MARGIN * rates[1] or rates[0] > LOSS * rates[1]:  # a request begins with one token
            assert rates[budget.nodes] == pytest.approx(max(rates)), (lines, draft)
        else:
            assert budget.nodes == 1, (lines, draft)


def test_a_pass_costs_what_was_measured_and_a_straight_line_between() -> None:
    costs = costs_of(MEASURED)
    for rows in range(1, 200):
        assert costs(rows) == pytest.approx(cost_by_interpolation(MEASURED, rows))
    assert PassCosts()(7) == 7.0


def test_passes_in_use_correct_the_cost_step_by_step() -> None:
    costs = costs_of({1: 10.0, 4: 20.0})
    for _ in range(50):
        costs.learn(4, 30.0)
    assert costs(4) == pytest.approx(30.0, rel=1e-2) and costs(1) == 10.0
    for _ in range(50):
        costs.learn(4, 30.0)
    assert costs(1) == pytest.approx(15.0, rel=1e-2)  # not measured for long: the whole machine seems to be slower


def test_a_pass_that_was_held_up_does_not_end_speculation() -> None:
    """A second in the only pass of that size: as it came, two rows would seem dear, would not be tried again and so stay dear."""
    costs = costs_of(MEASURED)
    costs.learn(2, 1000.0)
    costs.learn(5, 1000.0)
    assert costs(2) == pytest.approx(1.1 * MEASURED[2]) and costs(5) <= 1.1 * cost_by_interpolation(MEASURED, 5)


def test_what_passes_cost_while_the_machine_was_busy_is_forgotten_once_it_is_not() -> None:
    """All passes took four times as long; then those of one row, the only ones that there are, are seen to be fast again."""
    costs = costs_of(MEASURED)
    for _ in range(60):
        for rows, seconds in MEASURED.items():
            costs.learn(rows, 4 * seconds)
    assert costs(5) == pytest.approx(4 * cost_by_interpolation(MEASURED, 5), rel=0.05)
    for _ in range(100):
        costs.learn(1, MEASURED[1])
    assert costs(5) == pytest.approx(cost_by_interpolation(MEASURED, 5), rel=0.05)


def test_acceptance_counts_the_tested_positions_only() -> None:
    found = Acceptance(memory=1.0)
    for depth, accepted in ((3, 3), (3, 1), (2, 0), (1, 1), (0, 0)):
        found.learn(depth, accepted)
    assert (found.tried, found.taken) == ([4.0, 2.0, 1.0], [3.0, 1.0, 1.0])
    assert found.rate(0, 0.5, 0.0) == 0.75 and found.rate(9, 0.5, 4.0) == 0.5
    assert found.rate(1, 0.9, 2.0) == pytest.approx((1 + 2 * 0.9) / 4)


def test_old_observations_fade() -> None:
    found = Acceptance(memory=0.5)
    for accepted in (0, 0, 1):
        found.learn(1, accepted)
    assert (found.tried, found.taken) == ([1.75], [1.0])


# --- over time --------------------------------------------------------------------------------------------------------


def lengths(
    strides: Sequence[Stride], acceptance: Sequence[float], passes: int, seed: int, draft: float = 0.0
) -> list[list[int]]:
    """Draft lengths by pass and line, each drafted token right by chance."""
    noise, found = random.Random(seed), []
    for _ in range(passes):
        row = [stride.budget(ROOM).nodes for stride in strides]
        for stride, k in zip(strides, row, strict=True):
            stride.spend(draft * k)
            if k:
                right = itertools.takewhile(lambda share: noise.random() < share, each(acceptance)[:k])
                stride.learn(chain([1] * k), sum(1 for _ in right))
        found.append(row)
    return found


def speed_over_plain(rows: Sequence[Sequence[int]], acceptance: Sequence[float], draft: float) -> float:
    """Tokens per time over plain decoding's, by the table; accepted tokens at their expected number."""
    lines = len(rows[0])
    tokens = sum(expected_by_enumeration(each(acceptance), k) for row in rows for k in row)
    time = sum(cost_by_interpolation(MEASURED, lines + sum(row)) + draft * sum(row) for row in rows)
    return tokens / time / (lines / cost_by_interpolation(MEASURED, lines))


@pytest.mark.parametrize("lines", [1, 2, 4, 8, 12, 16])
@pytest.mark.parametrize("acceptance", ACCEPTANCES, ids=str)
def test_with_rising_batches_it_is_never_slower_than_plain_by_three_per_cent(lines: int, acceptance: tuple[float, ...]) -> None:
    for draft in (0.0, 0.5):
        pace = Pace(costs_of(MEASURED))
        strides = [Stride(pace, PARAMS) for _ in range(lines)]
        rows = lengths(strides, acceptance, 300, seed=lines, draft=draft)
        assert speed_over_plain(rows, acceptance, draft) >= 0.97


@pytest.mark.parametrize("acceptance", ACCEPTANCES[:5], ids=str)
def test_a_batch_of_sixteen_turns_speculation_off_and_it_stays_off(acceptance: tuple[float, ...]) -> None:
    for seed in range(3):
        pace = Pace(costs_of(MEASURED))
        rows = lengths([Stride(pace, PARAMS) for _ in range(16)], acceptance, 600, seed)
        assert all(k == 0 for row in rows[1:] for k in row)


def test_where_nothing_pays_it_is_tried_ever_more_rarely_and_one_token_long() -> None:
    pace = Pace(costs_of(MEASURED))
    (row,) = zip(*lengths([Stride(pace, PARAMS)], (0.0,), 1200, seed=1), strict=True)
    tried = [at for at, k in enumerate(row) if k]
    late = [at for at in tried if at > 20]
    gaps = [b - a for a, b in itertools.pairwise(late)]
    assert {row[at] for at in late} == {1}
    assert gaps == sorted(gaps) and gaps[-1] == 256 and len(late) <= 7


def test_a_drafter_that_gets_better_is_taken_up_again() -> None:
    pace = Pace(costs_of(MEASURED))
    stride = Stride(pace, PARAMS)
    assert lengths([stride], (0.0,), 400, seed=1)[-1] == [0]
    assert lengths([stride], (1.0,), 4000, seed=1)[-1][0] > 4


def test_a_text_that_copies_does_not_suffer_from_texts_before_it() -> None:
    pace = Pace(costs_of(MEASURED))
    for seed in range(20):
        stride = Stride(pace, PARAMS)
        lengths([stride], (0.1,), 100, seed)
        stride.close()
    (row,) = zip(*lengths([Stride(pace, PARAMS)], (1.0,), 12, seed=1), strict=True)
    assert row[0] > 0 and row[-1] == LONGEST


def test_a_trial_waits_until_the_drafter_has_a_guess() -> None:
    pace = Pace(costs_of(MEASURED))
    stride = Stride(pace, PARAMS)
    lengths([stride], (0.0,), 10, seed=1)
    asked = [stride.budget(ROOM).nodes for _ in range(40)]
    assert asked[-20:] == [1] * 20  # nothing was learnt meanwhile
    stride.learn(chain([1]), 0)
    assert [stride.budget(ROOM).nodes for _ in range(20)] == [0] * 20


def test_a_length_that_is_a_little_better_is_no_reason_to_change() -> None:
    pace = Pace(costs_of({1: 10.0, 64: 73.0}))  # 1 a row
    stride = Stride(pace, PARAMS)
    given(stride, (0.72,))
    first = stride.budget(ROOM).nodes
    best = set()
    for share in (0.70, 0.72, 0.68, 0.74, 0.66) * 4:
        given(stride, (share,))
        rates = pace.rates(each((share,)))
        best.add(rates.index(max(rates)))
        assert max(rates) <= MARGIN * rates[first]
        assert stride.budget(ROOM).nodes == first
    assert len(best) > 1  # the best one did change


def test_what_has_fallen_two_per_cent_behind_plain_decoding_is_given_up_at_once() -> None:
    pace = Pace(costs_of({1: 10.0, 2: 12.0, 3: 20.0}))
    stride = Stride(pace, PARAMS)
    for share, k in ((0.4, 1), (0.19, 1), (0.17, 0), (0.24, 0), (0.27, 1)):  # 1.2 x plain pays from 0.2 on
        given(stride, (share,))
        assert stride.budget(ROOM).nodes == k, share


def test_a_slow_drafter_is_as_good_as_none() -> None:
    pace = Pace(costs_of(FLAT))
    rows = lengths([Stride(pace, PARAMS)], (0.9,), 100, seed=1, draft=50.0)
    assert rows[0] == [LONGEST] and all(row == [0] for row in rows[1:16])


def test_observing_plain_passes_is_no_part_of_what_a_draft_costs() -> None:
    pace = Pace(costs_of(STEEP))
    stride = Stride(pace, PARAMS)
    for _ in range(10):
        assert stride.budget(ROOM).nodes == 0
        stride.spend(100.0)
    pace.costs = costs_of(FLAT)
    Stride(pace, PARAMS)  # another line is reason to think again
    k = stride.budget(ROOM).nodes
    assert k > 3 and pace.drafts.guess_s == 0.0
    stride.spend(3.0)
    stride.learn(chain([1, 1, 1]), 0)  # less deep than was asked for: it was looked for as far
    assert pace.drafts.guess_s == pytest.approx((100.0 + 3.0) / k)


def test_bounds_that_were_given_are_kept_and_the_room_bounds_all() -> None:
    for options, budget in (({"tokens": 3}, (3, 3)), ({"nodes": 12}, (12, LONGEST)), ({"tokens": 4, "nodes": 9}, (9, 4))):
        pace = Pace(costs_of(STEEP), **options)
        found = Stride(pace, PARAMS).budget(ROOM)
        assert (found.nodes, found.depth) == budget and pace.widest("all") == max(options.values())
    short = Pace(costs_of(FLAT))
    stride = Stride(short, PARAMS)
    given(stride, (1.0,))
    assert stride.budget(2).nodes == 2


def test_rows_of_beams_and_plain_requests_in_the_same_passes_count() -> None:
    """Alone four lines speculate; beside 28 rows of others no row is free, and all would wait for their drafts."""
    for others, pays in ((0, True), (28, False)):
        pace = Pace(costs_of({1: 8.0, 4: 9.0, 12: 10.0, 32: 64.0, 64: 150.0}))
        strides = [Stride(pace, PARAMS) for _ in range(4)]
        given(strides[0], (0.6,))
        pace.costs.learn(4 + others, pace.costs(4 + others), drafted=0)
        rates = pace.rates([0.6, 0.6])
        assert rates[2] == pytest.approx((others + 4 * (1 + 0.6 + 0.36)) / pace.costs(others + 4 * 3))
        assert pace.others == others and (rates[1] > rates[0]) is pays
        assert (strides[0].budget(ROOM).nodes > 0) is pays


def test_lines_that_ended_are_not_counted_and_may_end_twice() -> None:
    pace = Pace(costs_of(MEASURED))
    one, two = Stride(pace, PARAMS), Stride(pace, PARAMS)
    one.close()
    one.close()
    assert pace.lines == 1
    two.close()
    assert pace.lines == 0


# --- drafters that read the text before they guess --------------------------------------------------------------------


def speed_of_requests(
    acceptance: Sequence[float], *, lines: int, requests: int, prompt: int, passes: int, draft: float, read: float
) -> float:
    """Tokens per time over plain decoding's, of requests one batch after the other; reading their prompts takes time as well."""
    pace, noise = Pace(costs_of(MEASURED)), random.Random(lines)
    tokens, time = 0, 0.0
    for _ in range(requests):
        strides = [Stride(pace, PARAMS) for _ in range(lines)]
        unread = [prompt] * lines
        for stride in strides:
            stride.hear(prompt)
        for _ in range(passes):
            row = [stride.budget(ROOM).nodes for stride in strides]
            for i, (stride, k) in enumerate(zip(strides, row, strict=True)):
                if k:
                    spent, unread[i] = draft * k + read * unread[i], 0
                    stride.spend(spent)
                    time += spent
                right = itertools.takewhile(lambda share: noise.random() < share, each(acceptance)[:k])
                taken = sum(1 for _ in right)
                if k:
                    stride.learn(chain([1] * k), taken)
                stride.hear(taken + 1)
                unread[i] += taken + 1
                tokens += taken + 1
            time += cost_by_interpolation(MEASURED, lines + sum(row))
        for stride in strides:
            stride.close()
    return tokens / time / (lines / cost_by_interpolation(MEASURED, lines))


def test_a_prompt_that_is_read_before_the_first_guess_is_not_the_price_of_guesses() -> None:
    """Reading 300 tokens takes as long as 15 guesses: taken for one guess, it would end speculation for all requests that follow."""
    speed = speed_of_requests((0.7,), lines=1, requests=6, prompt=300, passes=100, draft=1.2, read=0.06)
    assert speed > 1.1


@pytest.mark.parametrize("lines", [1, 4, 16])
@pytest.mark.parametrize("acceptance", ((0.0,), (0.1,), (0.53, 0.56), (0.9,)), ids=str)
@pytest.mark.parametrize("read", [0.06, 0.8], ids=["one layer", "twenty layers"])
def test_with_rising_batches_reading_costs_no_three_per_cent_either(
    lines: int, acceptance: tuple[float, ...], read: float
) -> None:
    assert speed_of_requests(acceptance, lines=lines, requests=2, prompt=20, passes=600, draft=20 * read, read=read) >= 0.97


@pytest.mark.parametrize("acceptance", ((0.0,), (0.1,), (0.2,)), ids=str)
@pytest.mark.parametrize("lines", [1, 4])
def test_short_requests_whose_like_were_refused_before_do_not_all_pay_for_hope(
    lines: int, acceptance: tuple[float, ...]
) -> None:
    """Thirty requests of 32 passes: each would hope anew, for 7 % of its time."""
    assert speed_of_requests(acceptance, lines=lines, requests=30, prompt=40, passes=32, draft=1.3, read=0.06) >= 0.97


def test_what_a_guess_and_what_reading_takes_are_told_apart() -> None:
    found = DraftCosts()
    found.learn(100.0, 1, 1000)
    assert (found.guess_s, found.read_s) == (0.0, 0.1)  # nothing is known of guesses yet
    for seconds in (2.0, 4.0, 6.0):
        found.learn(seconds, 2, 3)
    assert found.guess_s == 2.0
    found.learn(50.0, 1, 200)  # 0.24 a token read
    assert found.guess_s == 2.0 and found.read_s == pytest.approx(0.1 + 0.3 * (0.24 - 0.1))


def test_a_drafter_that_was_held_up_comes_back() -> None:
    """Nine guesses of 0.1 s each, in passes of 8.5 ms: it is left alone, tried again in the end, and then as good as it is."""
    pace = Pace(costs_of(MEASURED))
    for _ in range(9):
        pace.drafts.learn(100.0, 1, 2)
    stride = Stride(pace, PARAMS)
    given(stride, (0.9,))
    assert lengths([stride], (0.9,), 200, seed=1)[-1] == [0]
    stride.hear(20)
    assert lengths([stride], (0.9,), 1000, seed=1)[-1][0] > 0


def test_trials_take_a_small_share_of_the_time_at_most() -> None:
    for guess, read in ((0.5, 0.0), (30.0, 0.0), (0.1, 0.05), (0.1, 0.5)):
        pace = Pace(costs_of(MEASURED))
        pace.drafts.guess_s, pace.drafts.read_s = guess, read
        stride = Stride(pace, PARAMS)
        given(stride, (0.0,))
        passes = spent = 0.0
        for _ in range(4000):
            pace.drafts.guess_s, pace.drafts.read_s = guess, read
            passes += MEASURED[1]
            if stride.budget(ROOM).nodes:
                spent += guess + read * stride._unread
                stride.learn(chain([1]), 0)
            stride.hear(1)
        assert spent <= EXPLORE * passes, (guess, read)


def test_what_attention_takes_is_told_apart_from_two_sizes_of_a_pass_at_two_lengths() -> None:
    list_s, slot_s = attention(3e-6 + 1e-6, 3e-6 + 8e-6)
    assert abs(list_s - 3e-6) < 1e-12 and abs(slot_s - 1e-6) < 1e-12
    assert attention(2e-6, 1e-6) == (2e-6, 0.0)  # noise: more rows cannot cost less
    assert attention(1e-6, 9e-6)[0] == 0.0


def test_behind_a_long_prompt_sizes_that_were_not_measured_there_cost_what_they_will() -> None:
    def seconds(rows: int, length: int) -> float:
        return 4e-3 + 2e-4 * rows + (3e-6 + 1e-6 * rows) * length

    told, untold = PassCosts(3e-6, 1e-6), PassCosts()
    for costs in (told, untold):
        for rows in (1, 2, 4, 8, 16):
            costs.learn(rows, seconds(rows, 64), listed=64, seen=64 * rows)
        for _ in range(60):
            costs.learn(1, seconds(1, 2000), listed=2000, seen=2000)
    for rows in (1, 2, 3, 8, 16):
        assert abs(told(rows) - seconds(rows, 2000)) < 1e-4 * seconds(rows, 2000)
    assert untold(8) - untold(1) < 0.2 * (seconds(8, 2000) - seconds(1, 2000))  # rows would seem to cost hardly anything


@pytest.mark.parametrize(("times_list", "times_slot"), [(1, 1), (3, 1), (1, 5), (5, 5), (0, 0)])
def test_attention_that_was_measured_wrong_spoils_neither_long_nor_short_contexts_afterwards(
    times_list: int, times_slot: int
) -> None:
    def seconds(rows: int, length: int) -> float:
        return 4e-3 + 2e-4 * rows + (1e-6 + 2e-7 * rows) * length

    costs = PassCosts(times_list * 1e-6, times_slot * 2e-7)
    for rows in (1, 2, 4, 8, 16):
        costs.learn(rows, seconds(rows, 64), listed=64, seen=64 * rows)
    for length in (2000, 100, 2000, 100):
        for _ in range(300):
            costs.learn(1, seconds(1, length), listed=length, seen=length)
        for rows in (1, 2, 8):
            assert 0.6 < costs(rows) / seconds(rows, length) < 1.6, (rows, length, costs(rows), seconds(rows, length))


def test_one_pass_in_a_good_moment_does_not_make_attention_cheap_for_good() -> None:
    def seconds(rows: int) -> float:
        return 4e-3 + 2e-4 * rows + (1e-6 + 1e-6 * rows) * 2000

    costs = PassCosts(1e-6, 1e-6)
    for rows in (1, 2, 4, 8):
        costs.learn(rows, seconds(rows), listed=2000, seen=2000 * rows)
    costs.learn(1, 0.55 * seconds(1), listed=2000, seen=2000)
    for _ in range(150):
        costs.learn(1, seconds(1), listed=2000, seen=2000)
    costs.learn(16, seconds(16), listed=2000, seen=2000 * 16)
    assert costs._share > 0.9
    assert 0.9 < costs(8) / seconds(8) < 1.1


def test_a_rare_size_that_was_measured_in_a_bad_moment_costs_no_more_than_larger_ones() -> None:
    costs = costs_of({1: 5.0, 4: 7.0, 6: 7.5, 8: 8.0, 16: 12.0})
    costs.learn(5, 14.0)
    costs.learn(5, 14.0)
    assert costs(4) == 7.0 and costs(5) == 7.5


def test_a_pass_behind_a_draft_model_says_nothing_of_plain_decoding() -> None:
    """It finds other weights in the processor's caches; with drafts it is as any with drafts is."""
    costs = costs_of({1: 5.0, 4: 7.0})
    for _ in range(50):
        costs.disturb()
        costs.learn(1, 6.0, drafted=0)
        costs.disturb()
        costs.learn(4, 7.0, drafted=3)
    assert (costs(1), costs(4)) == (5.0, 7.0)
    costs.disturb()
    costs.learn(4, 8.0, drafted=3)
    assert costs(4) == pytest.approx(7.1)
    for _ in range(50):
        costs.learn(1, 6.0, drafted=0)
    assert costs(1) == pytest.approx(6.0, abs=0.01)
