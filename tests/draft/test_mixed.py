"""Several drafters in one: who is asked, who hears what, and that each is closed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.draft.sources import torch_target
from toolkit.contracts import SamplingParams
from toolkit.draft import mixed
from toolkit.draft.contract import Budget, Commit, Cost, Target
from toolkit.draft.mixed import FirstOf, FirstOfSource, joined
from toolkit.draft.tree import EMPTY, DraftTree, chain
from toolkit.errors import UsageError

BUDGET = Budget(4, 4, SamplingParams())


class Stub:
    def __init__(self, tree: DraftTree, *, fails: bool = False) -> None:
        self.tree, self.fails = tree, fails
        self.heard: list[int] = []
        self.asked = self.closed = 0

    def observe(self, commit: Commit) -> None:
        self.heard += commit.tokens

    def propose(self, budget: Budget) -> DraftTree:
        self.asked += 1
        return self.tree

    def close(self) -> None:
        self.closed += 1
        if self.fails:
            raise OSError("closing failed")


class StubSource:
    lossy = False
    chances = "none"
    draw = False
    opened: list[Stub] = []  # noqa: RUF012 - a book of the test

    def __init__(self, target: Target, options: Mapping[str, Any]) -> None:
        self.options = dict(options)
        self.name = self.options.pop("called", "stub")
        self.needs_hidden = self.options.pop("hidden", False)
        self.cost = Cost(self.options.pop("flops", 0.0), 1.0)

    def open(self, seed: int) -> Stub:
        if self.name == "broken":
            raise OSError("opening failed")
        StubSource.opened.append(Stub(chain([seed])))
        return StubSource.opened[-1]


class Pair(FirstOfSource):
    name = "a+b"
    parts = ("a", "b")
    defaults = {"a": {"flops": 3.0, "extra": 1}}  # noqa: RUF012 - a constant


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rows:
        @staticmethod
        def load(name: str) -> type[StubSource]:
            return StubSource

    monkeypatch.setattr(mixed, "DRAFTERS", Rows())
    StubSource.opened.clear()


def test_the_first_that_has_a_guess_proposes_and_the_rest_are_not_asked() -> None:
    silent, sure, idle = Stub(EMPTY), Stub(chain([7])), Stub(chain([8]))
    drafter = FirstOf([silent, sure, idle])
    assert drafter.propose(BUDGET).tokens == (7,)
    assert (silent.asked, sure.asked, idle.asked) == (1, 1, 0)
    assert len(FirstOf([silent, silent]).propose(BUDGET)) == 0


def paths(tree: DraftTree) -> list[tuple[int, ...]]:
    return [tuple(tree.tokens[node] for node in path) for path in tree.paths]


def test_filled_up_a_tree_has_the_paths_of_both_each_once_and_the_first_ones_first() -> None:
    first = chain([1, 2, 3])
    second = DraftTree((4, 1, 2, 5, 9), (-1, -1, 1, 1, 0))
    whole = joined(first, second)
    assert paths(whole)[:3] == paths(first)
    assert sorted(paths(whole)) == sorted({*paths(first), *paths(second)})
    assert paths(joined(EMPTY, second)) == paths(second) and paths(joined(first, EMPTY)) == paths(first)


def test_the_parts_behind_have_the_room_that_is_left_and_are_not_asked_where_there_is_none() -> None:
    rooms: list[int] = []

    class Asked(Stub):
        def propose(self, budget: Budget) -> DraftTree:
            rooms.append(budget.nodes)
            return super().propose(budget)

    parts = [Asked(chain([1, 2])), Asked(EMPTY), Asked(chain([1, 5])), Asked(chain([6]))]
    assert paths(FirstOf(parts, fill=True).propose(BUDGET)) == [(1,), (1, 2), (1, 5), (6,)]
    assert rooms == [4, 2, 2, 1]
    idle = Stub(chain([7]))
    assert len(FirstOf([Stub(chain([1, 2, 3, 4])), idle], fill=True).propose(BUDGET)) == 4 and idle.asked == 0


def test_draws_are_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StubSource, "draw", True)
    assert not Pair(torch_target(), {}).fill
    with pytest.raises(UsageError, match="cannot fill"):
        Pair(torch_target(), {"fill": True})


def test_every_part_hears_every_commit() -> None:
    parts = [Stub(EMPTY), Stub(chain([7]))]
    drafter = FirstOf(parts)
    for tokens in ((1, 2), (3,)):
        drafter.observe(Commit(tokens))
    assert [part.heard for part in parts] == [[1, 2, 3], [1, 2, 3]]


def test_all_are_closed_also_where_one_fails() -> None:
    parts = [Stub(EMPTY), Stub(EMPTY, fails=True), Stub(EMPTY)]
    with pytest.raises(OSError, match="closing failed"):
        FirstOf(parts).close()
    assert [part.closed for part in parts] == [1, 1, 1]


def test_what_was_opened_before_a_part_failed_is_closed() -> None:
    source = Pair(torch_target(), {"b": {"called": "broken"}})
    with pytest.raises(OSError, match="opening failed"):
        source.open(0)
    assert [stub.closed for stub in StubSource.opened] == [1]


def test_options_of_a_part_stand_under_its_name_before_the_defaults() -> None:
    source = Pair(torch_target(), {"a": {"extra": 2}, "b": {"hidden": True, "flops": 1.0}})
    assert [part.options for part in source.sources] == [{"extra": 2}, {}]  # type: ignore[attr-defined]
    assert source.needs_hidden
    assert not source.lossy
    assert source.cost == Cost(3.0, 1.0)
    assert source.open(5).propose(BUDGET).tokens == (5,)


@pytest.mark.parametrize("options", [{"c": {}}, {"a": 3}, {"min_match": 2}])
def test_options_of_no_part_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        Pair(torch_target(), options)
