"""Laws of every drafter of the table, over every target: a new row gets them without new test code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

import pytest

from tests.draft.feeder import Feeder
from tests.draft.sources import TARGETS, build, options_of
from toolkit.contracts import SamplingParams
from toolkit.draft.contract import DRAFTERS, Budget, Commit, Drafter, Source, Target
from toolkit.draft.tree import DraftTree
from toolkit.errors import EngineError, UsageError
from toolkit.kv.blocks import BlockPool
from toolkit.sample.accept import checked

GREEDY, WARM = SamplingParams(), SamplingParams(temperature=0.9, top_k=40)
BUDGETS = [
    Budget(nodes, depth, sampling)
    for nodes, depth in ((1, 1), (4, 4), (12, 4), (7, 2), (64, 16))
    for sampling in (GREEDY, WARM)
]
EARLY = {
    name for name in DRAFTERS if find_spec(DRAFTERS[name].partition(":")[0]) is None
}  # TEMPORARY: rows without a module yet
EARLY |= {name for name in DRAFTERS if set(name.split("+")) & EARLY}


class Case(NamedTuple):
    name: str
    target: Target
    source: Source

    def feeder(self, seed: int) -> Feeder:
        return Feeder(self.source, self.target, seed)


def cases() -> Iterator[Any]:
    for name in DRAFTERS:
        for place in TARGETS:
            for options in options_of(name):
                shown = "-".join([name, place, *(f"{key}={value}" for key, value in options.items())])
                yield pytest.param(
                    (name, place, options), id=shown, marks=[pytest.mark.skipif(name in EARLY, reason="no module yet")]
                )


@pytest.fixture(scope="module", params=cases())
def case(request: pytest.FixtureRequest) -> Case:
    name, place, options = request.param
    target = TARGETS[place]()
    return Case(name, target, build(name, target, options))


@pytest.fixture(autouse=True)
def every_private_block_is_free_after_the_test(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "case" in request.fixturenames:
        for pool in pools(request.getfixturevalue("case").source):
            assert pool.in_use == 0
            pool.check()


def pools(thing: object, depth: int = 5) -> list[BlockPool]:
    """Every block pool that an object holds, wherever it keeps it."""
    if isinstance(thing, BlockPool):
        return [thing]
    inside: list[object] = []
    if isinstance(thing, Mapping):
        inside = list(thing.values())
    elif isinstance(thing, list | tuple):
        inside = list(thing)
    elif type(thing).__module__.startswith("toolkit.draft"):
        inside = [
            getattr(thing, name, None) for name in (*getattr(thing, "__dict__", ()), *getattr(type(thing), "__slots__", ()))
        ]
    return [pool for each in inside for pool in pools(each, depth - 1)] if depth else []


def run(case: Case, drafter: Drafter, seed: int, steps: int) -> list[DraftTree]:
    """Trees of a conversation of some steps."""
    feeder = case.feeder(seed)
    drafter.observe(feeder.first())
    trees = []
    for step in range(steps):
        trees.append(drafter.propose(BUDGETS[step % len(BUDGETS)]))
        drafter.observe(feeder.commit(feeder.verdict(trees[-1])))
    return trees


def shape(tree: DraftTree) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tree.tokens, tree.parent


def test_the_row_says_what_the_source_is(case: Case) -> None:
    assert case.source.name == case.name
    assert case.source.lossy == ("lossy" in case.name)
    assert case.source.cost.flops >= 0
    assert case.source.cost.weight_bytes >= 0


def test_an_option_that_it_does_not_have_is_refused_by_name(case: Case) -> None:
    with pytest.raises(UsageError, match="no_such_option"):
        build(case.name, case.target, {"no_such_option": 1})


@pytest.mark.parametrize("seed", range(3))
def test_every_tree_keeps_to_the_budget_the_vocabulary_and_its_own_q(case: Case, seed: int) -> None:
    drafter = case.source.open(seed)
    for step, tree in enumerate(run(case, drafter, seed, 25)):
        budget = BUDGETS[step % len(BUDGETS)]
        assert len(tree) <= budget.nodes
        assert tree.depth <= budget.depth
        assert all(0 <= token < case.target.vocab_size for token in tree.tokens)
        assert tree.q is None or (case.source.draw and budget.sampling.temperature > 0)
        if tree.q is not None:
            for family in tree.children.values():
                checked(tree.q[list(family)], [tree.tokens[node] for node in family], case.target.vocab_size)
    drafter.close()


def test_it_guesses_now_and_then(case: Case) -> None:
    drafter = case.source.open(0)
    assert sum(len(tree) for tree in run(case, drafter, 1, 20)) > 0
    drafter.close()


def test_equal_states_give_equal_trees(case: Case) -> None:
    one, other = case.source.open(5), case.source.open(5)
    assert list(map(shape, run(case, one, 2, 15))) == list(map(shape, run(case, other, 2, 15)))
    one.close()
    other.close()


def test_sequences_do_not_see_each_other(case: Case) -> None:
    alone = case.source.open(5)
    hoped = list(map(shape, run(case, alone, 3, 12)))
    alone.close()
    drafter, noise = case.source.open(5), case.source.open(6)
    feeder, other = case.feeder(3), case.feeder(4)
    drafter.observe(feeder.first())
    noise.observe(other.first(55))
    for step, tree in enumerate(hoped):
        noise.propose(BUDGETS[(step + 3) % len(BUDGETS)])
        found = drafter.propose(BUDGETS[step % len(BUDGETS)])
        assert shape(found) == tree
        drafter.observe(feeder.commit(feeder.verdict(found)))
        noise.observe(other.commit(other.tokens(2)))
    drafter.close()
    noise.close()


@pytest.mark.parametrize("seed", range(3))
def test_one_commit_or_several_give_the_same_trees(case: Case, seed: int) -> None:
    whole, pieces = case.source.open(5), case.source.open(5)
    one, other = case.feeder(seed), case.feeder(seed)
    whole.observe(one.first())
    pieces.observe(other.first())
    for step in range(12):
        budget = BUDGETS[step % len(BUDGETS)]
        tree = whole.propose(budget)
        assert shape(pieces.propose(budget)) == shape(tree)
        tokens = one.verdict(tree) + one.tokens(2)
        whole.observe(one.commit(tokens))
        for token in tokens:
            pieces.observe(other.commit([token]))
    whole.close()
    pieces.close()


def test_commits_may_follow_each_other_without_a_proposal_between_them(case: Case) -> None:
    quiet, asked = case.source.open(5), case.source.open(5)
    one, other = case.feeder(6), case.feeder(6)
    quiet.observe(one.first())
    asked.observe(other.first())
    for _ in range(5):
        asked.propose(Budget(4, 2, GREEDY))
        tokens = one.tokens(3)
        quiet.observe(one.commit(tokens))
        asked.observe(other.commit(tokens))
    assert shape(quiet.propose(Budget(6, 3, GREEDY))) == shape(asked.propose(Budget(6, 3, GREEDY)))
    quiet.close()
    asked.close()


def test_a_prompt_whose_beginning_came_from_the_prefix_cache_is_as_good(case: Case) -> None:
    drafter = case.source.open(0)
    feeder = case.feeder(7)
    drafter.observe(feeder.first(cached=32))
    for _ in range(4):
        drafter.observe(feeder.commit(feeder.verdict(drafter.propose(Budget(8, 4, GREEDY)))))
    drafter.close()


def test_closing_frees_everything_at_any_time(case: Case) -> None:
    case.source.open(0).close()
    drafter = case.source.open(0)
    drafter.observe(case.feeder(8).first())
    drafter.close()
    drafter = case.source.open(0)
    run(case, drafter, 8, 3)
    drafter.propose(Budget(12, 4, WARM))
    drafter.close()


@pytest.mark.parametrize("takes", [0, 1, 3, 6])
def test_what_it_held_when_it_failed_is_free_after_closing(case: Case, takes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    take, left = BlockPool.take, takes

    def failing(pool: BlockPool) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise EngineError("no block is left")
        return take(pool)

    monkeypatch.setattr(BlockPool, "take", failing)
    drafter = case.source.open(0)
    try:
        run(case, drafter, 9, 6)
    except EngineError as error:
        assert "no block is left" in str(error)
    finally:
        drafter.close()


def test_one_token_is_prompt_enough(case: Case) -> None:
    drafter = case.source.open(0)
    feeder = case.feeder(10)
    drafter.observe(feeder.first(prompt=1))
    drafter.propose(Budget(4, 4, WARM))
    drafter.observe(feeder.commit(feeder.tokens(1)))
    drafter.propose(Budget(4, 4, GREEDY))
    drafter.close()


def test_an_empty_commit_changes_nothing(case: Case) -> None:
    drafter = case.source.open(0)
    drafter.observe(case.feeder(11).first())
    before = drafter.propose(Budget(6, 3, GREEDY))
    drafter.observe(Commit(()))
    assert shape(drafter.propose(Budget(6, 3, GREEDY))) == shape(before)
    drafter.close()


def test_the_laws_see_the_blocks_of_a_drafter_that_has_some() -> None:
    source = build("model", TARGETS["torch"](), {})
    assert len(pools(source)) == 1
    drafter = source.open(0)
    drafter.observe(Commit((1, 2, 3)))
    drafter.propose(Budget(4, 2, GREEDY))
    assert pools(source)[0].in_use > 0
    drafter.close()
    assert pools(source)[0].in_use == 0
