"""MTP where the budget weighs guesses one by one: the native call against the same call by call, and what is taken of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.draft.heads import NORMS
from tests.draft.test_mtp import noise, opened
from toolkit.contracts import SamplingParams
from toolkit.draft.contract import Budget, Commit
from toolkit.draft.grow import weighed
from toolkit.draft.mtp import MOST_PASSES
from toolkit.errors import EngineError
from toolkit.model.native.guesser import GuessPlan, NativeGuesser
from toolkit.model.native.pack import pack
from toolkit.model.native.packed import PackedEntry

GREEDY = SamplingParams()


@pytest.mark.parametrize("norms", [(), NORMS])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 2000.0])
def test_guesses_of_one_native_call_are_those_of_call_after_call(
    tmp_path: Path, norms: Sequence[str], temperature: float
) -> None:
    source, _, target = opened("native", tmp_path, norms=norms)
    runner = source.runner
    rows = noise(40, target.decoder.config.hidden_size)
    tokens = [11 * i % 250 for i in range(40)]
    for count, before in ((1, 0), (1, 25), (7, 20), (40, 0)):
        for most, least in ((1, -inf), (5, -inf), (8, log(0.05)), (8, 0.0)):
            found = []
            for fast in (True, False):
                line, plan = runner.line(), GuessPlan(most, 3, least, temperature)
                if before:
                    runner.extend(line, tokens[:before], rows[:before], 0)
                new = tokens[before : before + count], rows[before : before + count], before
                if fast:
                    feature, guesses = runner.guesses(line, *new, plan)
                else:
                    feature = runner.extend(line, *new)
                    guesses = runner.guesses_behind(line, feature, before + count - 1, plan)
                assert line.end == before + count
                found.append((feature, guesses))
                line.release()
            (feature, guesses), (slow_feature, slow) = found
            assert torch.equal(feature, slow_feature)
            assert [[token for token, _ in each] for each in guesses] == [[token for token, _ in each] for each in slow]
            assert [p for each in guesses for _, p in each] == pytest.approx(
                [p for each in slow for _, p in each], abs=1e-3, rel=1e-4
            )


def test_guesses_end_behind_the_first_whose_joint_probability_is_too_low(tmp_path: Path) -> None:
    source, _, target = opened("native", tmp_path)
    rows, tokens = noise(9, target.decoder.config.hidden_size), [11 * i % 250 for i in range(9)]
    whole, lengths = [], []
    for share in (0.0, 1e-16, 1e-12, 1e-8, 1e-4, 1.0):
        line, plan = source.runner.line(), GuessPlan(8, 2, log(share) if share else -inf, 2000.0)
        _, guesses = source.runner.guesses(line, tokens, rows, 0, plan)
        line.release()
        whole = whole or guesses
        joint, expected = 0.0, 0
        for each in whole:
            joint, expected = joint + each[0][1], expected + 1
            if exp(joint) < share:
                break
        assert guesses == whole[:expected]
        lengths.append(len(guesses))
    assert lengths[0] == 8 and lengths[-1] == 1 and len(set(lengths)) > 3


@pytest.mark.parametrize("place", ["torch", "native"])
def test_what_pays_is_taken_and_rows_that_came_during_a_rest_are_read_at_once(tmp_path: Path, place: str) -> None:
    source, _, target = opened(place, tmp_path, floor=0.0)
    rows, text = noise(60, target.decoder.config.hidden_size), [13 * i % 250 for i in range(61)]
    asked: list[tuple[list[float], int]] = []

    def worth(chances: Sequence[float], /, passes: int = 0) -> int:
        asked.append((list(chances), passes))
        return take

    take, budget = 5, Budget(0, 0, GREEDY, 16, worth)
    steady, rested = source.open(0), source.open(0)
    for last in range(20, 60):
        commit = Commit(
            tuple(text[: last + 1] if last == 20 else text[last : last + 1]),
            rows[0 if last == 20 else last - 1 : last],
            0 if last == 20 else last - 1,
        )
        steady.observe(commit)
        rested.observe(commit)
        tree = steady.propose(budget)
        chances, passes = asked[-1]
        assert 1 <= passes <= MOST_PASSES and chances == sorted(chances, reverse=True) and len(chances) <= 16
        assert len(tree) == take and tree.chances == tuple(chances[:take]) and tree.depth <= passes
        if last % 13 == 0:
            again = rested.propose(budget)
            assert again.tokens == tree.tokens and again.parent == tree.parent
            assert again.chances == pytest.approx(tree.chances, rel=1e-3)
    take = 0
    assert len(steady.propose(budget)) == 0
    steady.close()
    rested.close()
    assert source.runner.pool.free == source.runner.pool.size


def test_a_tree_holds_the_likeliest_guesses_and_whatever_they_follow() -> None:
    levels = [[(7, log(0.6)), (8, log(0.3))], [(9, log(0.9)), (7, log(0.05))], [(1, log(0.5)), (2, log(0.4))]]

    def all_of(chances: Sequence[float], /, passes: int = 0) -> int:
        assert passes == 3
        return len(chances)

    tree = weighed(levels, Budget(0, 0, GREEDY, 6, all_of), floor=0.1)
    assert tree.tokens == (7, 9, 8, 1, 2) and tree.parent == (-1, 0, -1, 1, 1)
    assert tree.chances == pytest.approx((0.6, 0.54, 0.3, 0.27, 0.216))
    assert len(weighed(levels, Budget(0, 0, GREEDY, 2, all_of), floor=0.1)) == 2


def test_guesses_that_would_lead_c_astray_are_refused(tmp_path: Path) -> None:
    source, head, target = opened("native", tmp_path)
    layer, store = source.runner._layer, source.runner.store
    assert isinstance(layer, NativeGuesser)
    good: dict[str, Any] = {
        "tokens": [3, 4], "place": 5, "cache": (store.keys, store.values), "slots": np.arange(40, 80, dtype=np.int32), "end": 9,
        "inputs": noise(2, target.decoder.config.hidden_size), "plan": GuessPlan(4, 2, -inf),
    }  # fmt: skip
    context, slots = target.decoder.config.context, store.keys.shape[2]
    layer.guesses(**good)
    layer.guesses(**good | {"place": context - 5})
    layer.guesses(**good | {"end": 37})
    for name, wrong in (
        ("tokens", [3, -1]), ("tokens", [3, target.decoder.config.vocab_size]), ("tokens", []), ("tokens", [3]), ("place", -1),
        ("place", context - 4), ("slots", np.full(40, slots, np.int32)), ("slots", np.full(40, -1, np.int32)), ("slots", np.arange(40)),
        ("slots", np.arange(80, dtype=np.int32)[::2]), ("end", 38), ("end", 1), ("end", 0), ("inputs", noise(2, 8)),
        ("inputs", good["inputs"].double()), ("plan", GuessPlan(0, 2, -inf)), ("plan", GuessPlan(4, 0, -inf)),
        ("cache", (store.keys, store.values[:, :, 1:])), ("cache", (store.keys.double(), store.values)),
    ):  # fmt: skip
        with pytest.raises(EngineError):
            layer.guesses(**good | {name: wrong})
    entry = PackedEntry(pack(head.fc), target.decoder.packed.embedding)  # type: ignore[union-attr]
    part = head.decoder(target.decoder.head_rows(head.ids))
    for known in (head.ids[:-1], head.ids + target.decoder.config.vocab_size, head.ids.int()):
        with pytest.raises(EngineError):
            NativeGuesser(part, entry, known)


def all_of(chances: Sequence[float], /, passes: int = 0) -> int:
    return len(chances)


@pytest.mark.parametrize("place", ["torch", "native"])
def test_weighed_guesses_are_those_of_a_chain_through_forced_tokens_gaps_and_up_to_the_context_s_end(
    tmp_path: Path, place: str
) -> None:
    source, _, target = opened(place, tmp_path, width=1, floor=0.0)
    context = target.decoder.config.context
    rows, text = noise(60, target.decoder.config.hidden_size), [13 * i % 250 for i in range(61)]
    commits = {
        "plain": [Commit(tuple(text[:31]), rows[:30], 0)],
        "forced": [Commit(tuple(text[:34]), rows[:30], 0)],
        "gap": [Commit(tuple(text[:31]), rows[20:30], 20), Commit(tuple(text[31:41]), rows[35:40], 35)],
        "nothing new": [Commit(tuple(text[:31]), rows[:30], 0), Commit(())],
        "no row": [Commit(tuple(text[:31]), None)],
    }
    for name, told in commits.items():
        found = []
        for budget in (Budget(4, 4, GREEDY), Budget(0, 0, GREEDY, 4, all_of)):
            drafter = source.open(0)
            for commit in told:
                drafter.observe(commit)
                tree = drafter.propose(budget)
                assert drafter.propose(budget).tokens == tree.tokens  # to propose changes nothing
            drafter.close()
            found.append(tree.tokens)
        assert found[0] == found[1] and len(found[0]) == (0 if name == "no row" else 4), name
    tail = [13 * i % 250 for i in range(context + 1)]
    for length in (context - 2, context - 1, context, context + 1):
        lengths = []
        for budget in (Budget(4, 4, GREEDY), Budget(0, 0, GREEDY, 4, all_of)):
            drafter = source.open(0)
            drafter.observe(Commit(tuple(tail[:length]), noise(20, rows.shape[1]), length - 21))
            lengths.append(len(drafter.propose(budget)))
            drafter.close()
        assert lengths[0] == lengths[1] == min(4, max(0, context - length + 1)), length
    assert source.runner.pool.free == source.runner.pool.size


def test_rows_that_are_not_finite_end_a_chain_at_once_and_are_an_error(tmp_path: Path) -> None:
    source, _, target = opened("native", tmp_path)
    layer = source.runner._layer
    assert isinstance(layer, NativeGuesser)
    rows = noise(9, target.decoder.config.hidden_size)
    rows[8, 3] = torch.nan
    line = source.runner.line()
    with pytest.raises(EngineError, match="not finite"):
        source.runner.guesses(line, [1] * 9, rows, 0, GuessPlan(8, 2, -0.1))
    assert layer._found.made == 1
    with pytest.raises(EngineError, match="not finite"):
        layer.likeliest(rows[8:], 2)
