"""The suffix automaton against a search over all substrings of small texts, and its bounds on large ones."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.draft.suffix import REACH, ROOT_STATE, SuffixAutomaton


def ends(text: list[int], piece: list[int]) -> list[int]:
    """Places of the last token of every occurrence."""
    size = len(piece)
    return [i + size - 1 for i in range(len(text) - size + 1) if text[i : i + size] == piece]


def longest_earlier_suffix(text: list[int]) -> list[int]:
    return next((text[i:] for i in range(1, len(text) + 1) if len(ends(text, text[i:])) > 1 or i == len(text)), [])


def state_of(known: SuffixAutomaton, piece: list[int]) -> int | None:
    state = ROOT_STATE
    for token in piece:
        if token not in known.edges[state]:
            return None
        state = known.edges[state][token]
    return state


def agrees(known: SuffixAutomaton, text: list[int]) -> None:
    link = known.link[known.whole]
    if text:
        assert known.length[link] == len(longest_earlier_suffix(text))
    pieces = {tuple(text[i:j]) for i, j in itertools.combinations(range(len(text) + 1), 2)}
    for piece in pieces:
        state = state_of(known, list(piece))
        assert state is not None
        where = ends(text, list(piece))
        assert (known.count[state], known.last[state]) == (len(where), where[-1])
        assert set(known.edges[state]) == {text[i + 1] for i in where if i + 1 < len(text)}
        # The link is the longest proper suffix of the state's longest substring that ends at more places.
        longest = text[where[-1] - known.length[state] + 1 : where[-1] + 1]
        assert ends(text, longest) == where
        shorter = next(longest[i:] for i in range(1, len(longest) + 1) if i == len(longest) or ends(text, longest[i:]) != where)
        assert known.length[known.link[state]] == len(shorter)


@given(st.lists(st.integers(0, 2), max_size=14))
@settings(max_examples=150, deadline=None)
def test_every_substring_has_its_count_its_last_place_and_what_followed_it(text: list[int]) -> None:
    assert len(text) < REACH
    known = SuffixAutomaton()
    for size, token in enumerate(text):
        known.add(token)
        agrees(known, text[: size + 1])


def test_all_texts_of_two_letters_up_to_nine() -> None:
    for size in range(10):
        for text in itertools.product((0, 1), repeat=size):
            agrees(SuffixAutomaton(text), list(text))


def test_states_grow_linearly() -> None:
    noise = random.Random(1)
    for text in (
        [0] * 3000,
        [noise.randrange(2) for _ in range(3000)],
        [noise.randrange(1000) for _ in range(3000)],
        [*([0] * 1500), *([1] * 1500)],
        [0, 1] * 1500,
    ):
        known = SuffixAutomaton(text)
        assert len(known) <= 2 * len(text)
        assert sum(map(len, known.edges)) <= 3 * len(text)


@pytest.mark.parametrize("period", [1, 3])
def test_the_longest_match_is_exact_also_where_counts_are_no_longer_kept(period: int) -> None:
    text = [i % period for i in range(10 * REACH)]
    known = SuffixAutomaton(text)
    assert known.length[known.link[known.whole]] == len(text) - period
