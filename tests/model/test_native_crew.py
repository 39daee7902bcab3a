"""The number of threads follows what has been faster lately, per size of a pass, and goes back when that changes."""

from __future__ import annotations

from itertools import pairwise

from toolkit.model.native.crew import Crew


def run(crew: Crew, passes: int, seconds: dict[int, float], rows: int = 1, most: int = 2) -> list[int]:
    chosen = []
    for _ in range(passes):
        threads = crew.choose(rows, most)
        crew.learn(rows, most, threads, seconds[threads])
        chosen.append(threads)
    return chosen


def test_both_numbers_are_tried_and_the_faster_one_is_kept() -> None:
    assert run(Crew(), 11, {1: 1.0, 2: 4.0}) == [
        2,
        1,
        1,
        2,
        1,
        1,
        1,
        2,
        1,
        1,
        1,
    ]  # the loser again behind one pass, three, seven ...
    assert run(Crew(), 11, {1: 1.0, 2: 0.6}) == [2, 1, 2, 1, 2, 2, 2, 1, 2, 2, 2]


def test_the_slower_number_is_tried_ever_more_rarely() -> None:
    chosen = run(Crew(), 5000, {1: 1.0, 2: 4.0})
    trials = [i for i, threads in enumerate(chosen) if threads == 2]
    gaps = [b - a for a, b in pairwise(trials)]
    assert gaps == sorted(gaps) and gaps[0] < 20 and gaps[-1] == 512
    assert len(trials) < 20


def test_a_machine_that_becomes_free_or_busy_is_noticed() -> None:
    crew = Crew()
    run(crew, 100, {1: 1.0, 2: 4.0})
    assert run(crew, 3000, {1: 1.0, 2: 0.5})[-50:].count(2) > 45
    assert run(crew, 40, {1: 1.0, 2: 4.0})[-30:].count(1) > 26


def test_sizes_of_passes_are_told_apart() -> None:
    crew = Crew()
    run(crew, 10, {1: 1.0, 2: 4.0}, rows=1)
    run(crew, 10, {1: 1.0, 2: 0.5}, rows=32)
    assert (crew.choose(1, 2), crew.choose(32, 2)) == (1, 2)


def test_one_thread_allowed_is_one_thread() -> None:
    assert run(Crew(), 5, {1: 1.0}, most=1) == [1] * 5


def test_a_number_whose_first_pass_was_held_up_is_taken_back_at_its_next_trial() -> None:
    crew = Crew()
    chosen = []
    for n in range(40):
        threads = crew.choose(1, 2)
        chosen.append(threads)
        crew.learn(1, 2, threads, 7e-3 if n == 0 else {1: 1.5e-3, 2: 0.75e-3}[threads])
    assert chosen[:5] == [2, 1, 1, 2, 2] and chosen.count(1) < 8  # after one pass, not after many
