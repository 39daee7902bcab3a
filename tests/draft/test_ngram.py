"""The n-gram drafter against a search over all suffixes of the text."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.contracts import SamplingParams
from toolkit.draft import ngram
from toolkit.draft.contract import Budget, Commit
from toolkit.draft.ngram import ESCAPE, SHORTER, NgramDrafter
from toolkit.draft.tree import ROOT, DraftTree

GREEDY = SamplingParams()


def drafter_of(text: list[int], **options: float) -> NgramDrafter:
    drafter = NgramDrafter(**options)  # type: ignore[arg-type]
    drafter.observe(Commit(tuple(text)))
    return drafter


def followers(text: list[int], context: list[int]) -> tuple[Counter[int], dict[int, int]]:
    """What followed a context, how often, and where last."""
    counts: Counter[int] = Counter()
    last: dict[int, int] = {}
    for end in range(len(context), len(text)):
        if text[end - len(context) : end] == context:
            counts[text[end]] += 1
            last[text[end]] = end
    return counts, last


def contexts(text: list[int], path: list[int], most: int) -> list[list[int]]:
    """Suffixes of text + path of at most `most` tokens that occur in the text, longest of each set of places only."""
    line = text + path
    found: list[list[int]] = []
    places: list[int] = []
    for size in range(min(most, len(line)), 0, -1):
        suffix = line[-size:]
        where = [i for i in range(size, len(text) + 1) if text[i - size : i] == suffix]
        if where and where != places and not (not path and where == [len(text)]):
            found.append(suffix)
            places = where
    return found


def guesses(
    text: list[int], path: list[int], matched: int, mass: float, drafter: NgramDrafter
) -> list[tuple[float, int, int, int]]:
    """(probability, last place, token, matched + 1) of a node's children, the rule written down once more."""
    found: list[tuple[float, int, int, int]] = []
    seen: set[int] = set()
    for context in contexts(text, path, matched)[:SHORTER]:
        if len(context) < drafter.min_match or mass < drafter.floor:
            break
        counts, last = followers(text, context)
        if not counts:
            continue
        escape = ESCAPE / len(context)
        total = counts.total() + escape
        for token in sorted(counts, key=lambda t: (-counts[t], -last[t])):
            if mass * counts[token] / total < drafter.floor or len(seen) == drafter.width:
                break
            if token not in seen:
                seen.add(token)
                found.append((mass * counts[token] / total, last[token], token, len(context) + 1))
        mass *= escape / total
    return found


def twin(text: list[int], drafter: NgramDrafter, budget: Budget) -> DraftTree:
    tokens: list[int] = []
    parents: list[int] = []
    paths: list[list[int]] = []
    open_: list[tuple[tuple[float, int, int, int], int, list[int], int]] = []

    def push(parent: int, path: list[int], matched: int, mass: float) -> None:
        for p, last, token, length in guesses(text, path, matched, mass, drafter):
            open_.append(((-p, -last, parent, token), parent, [*path, token], length))

    push(ROOT, [], len(text) - 1, 1.0)
    while open_ and len(tokens) < budget.nodes:
        best = min(open_)
        open_.remove(best)
        (minus_p, _, parent, token), _, path, length = best
        tokens.append(token)
        parents.append(parent)
        paths.append(path)
        if len(path) < budget.depth:
            push(len(tokens) - 1, path, length, -minus_p)
    return DraftTree(tuple(tokens), tuple(parents))


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 3), st.integers(1, 4),
    st.sampled_from([0.01, 0.1, 0.3]), st.integers(1, 10), st.integers(1, 4),
)  # fmt: skip
@settings(max_examples=400, deadline=None)
def test_a_proposal_is_that_of_the_search_over_all_suffixes(
    text: list[int], min_match: int, width: int, floor: float, nodes: int, depth: int
) -> None:
    drafter = drafter_of(text, min_match=min_match, width=width, floor=floor)
    budget = Budget(nodes, depth, GREEDY)
    found, hoped = drafter.propose(budget), twin(text, drafter, budget)
    assert (found.tokens, found.parent) == (hoped.tokens, hoped.parent)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=30), st.sampled_from([0.01, 0.1, 0.3]), st.integers(1, 12), st.integers(0, 14),
    st.sampled_from([0.0, 0.4, 0.7]),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_where_the_budget_says_what_is_worth_a_row_the_likeliest_paths_are_taken_as_many_as_are(
    text: list[int], floor: float, reach: int, worth: int, sure: float
) -> None:
    drafter = drafter_of(text, floor=floor, sure=sure)
    told: list[float] = []

    def count(chances: Sequence[float]) -> int:
        told.extend(chances)
        return min(worth, len(chances))

    found = drafter.propose(Budget(3, 1, GREEDY, reach, count))
    whole = twin(text, drafter, Budget(reach, reach, GREEDY))
    first = guesses(text, [], len(text) - 1, 1.0, drafter)
    if not first or max(first)[0] < sure:
        assert len(found) == 0 and not told
        return
    assert found.tokens == whole.tokens[:worth] and found.parent == whole.parent[:worth]
    assert len(told) == len(whole) and told == sorted(told, reverse=True) and all(floor <= p <= 1 for p in told)


def test_a_text_that_repeats_itself_is_continued_to_the_budget() -> None:
    line = list(range(40))
    tree = drafter_of([*line, 99, *line[:15]]).propose(Budget(8, 8, GREEDY))
    assert tree.is_chain
    assert list(tree.tokens) == line[15:23]


def test_a_short_match_is_believed_for_fewer_tokens_than_a_long_one() -> None:
    line = list(range(40))
    sizes = [len(drafter_of([*line, 99, *line[:matched]]).propose(Budget(16, 16, GREEDY))) for matched in (2, 4, 8, 16)]
    assert sizes == sorted(set(sizes))


def test_a_repetition_runs_on_past_the_end_of_the_text() -> None:
    assert drafter_of([1, 2, 3] * 5).propose(Budget(7, 7, GREEDY)).tokens == (1, 2, 3, 1, 2, 3, 1)


def test_two_continuations_become_siblings_the_more_frequent_first() -> None:
    text = [1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 4, 8, 1, 2]
    tree = drafter_of(text, floor=0.05).propose(Budget(2, 1, GREEDY))
    assert (tree.tokens, tree.parent) == ((4, 3), (-1, -1))


def test_of_equally_frequent_continuations_the_more_recent_comes_first() -> None:
    assert drafter_of([1, 2, 3, 9, 1, 2, 4, 8, 1, 2]).propose(Budget(2, 1, GREEDY)).tokens == (4, 3)


@pytest.mark.parametrize("text", [[], [1], [1, 2, 3, 4], [1, 5, 1, 6, 1]])
def test_there_is_no_guess_where_too_little_matches(text: list[int]) -> None:
    assert len(drafter_of(text).propose(Budget(8, 8, GREEDY))) == 0


def test_what_is_old_is_forgotten_at_the_same_token_however_the_text_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "WINDOW", 16)
    noise = random.Random(2)
    text = [noise.randrange(4) for _ in range(200)]
    whole = NgramDrafter()
    pieces = NgramDrafter()
    whole.observe(Commit(tuple(text)))
    budget = Budget(8, 8, GREEDY)
    for asked, token in enumerate(text):
        pieces.observe(Commit((token,)))
        if asked % 5 == 0:
            pieces.propose(budget)
            assert 0 < len(pieces._text) < 32
        assert len(pieces._unread) < 16
    assert whole.propose(budget).tokens == pieces.propose(budget).tokens
    assert whole._text == pieces._text == text[-len(whole._text) :]
