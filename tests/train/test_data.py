"""Data: shards hold what the model said, whoever shares the passes, and a run that was cut goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

import toolkit.train.data as data
from tests.model.native_twin import random_decoder
from toolkit.errors import InputError, UsageError
from toolkit.model.attention import FullAttention
from toolkit.model.decoder import Decoder
from toolkit.model.native.decoder import NativeDecoder
from toolkit.model.native.library import missing
from toolkit.model.tiny import tiny_model
from toolkit.text.tokenizer import ByteTokenizer
from toolkit.train.data import Recipe, fill, inner_depths
from toolkit.train.lanes import Lanes
from toolkit.train.prompts import Prompts, Task
from toolkit.train.shards import Line, read_about, read_shard, shard_paths

NAMES = ("tokens", "bounds", "reply", "last", "hidden", "depths", "top_ids", "top_logits", "lse")
TOKENIZER = ByteTokenizer()


@pytest.fixture(autouse=True)
def short_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    """And half of the prompts from the grammar: turns that a random model draws are refused nearly always."""
    monkeypatch.setattr("toolkit.train.lanes.REPLY", 20)
    monkeypatch.setattr("toolkit.train.prompts.DRAWN", 0.5)


def lines(decoder: Decoder | NativeDecoder, tasks: Iterator[Task], width: int) -> dict[int, Line]:
    lanes = Lanes(decoder, width=width, depths=(0, 1), vocab=261, ends=(256,), accept=lambda turn: True)
    return {found.task: found for found in lanes.run(tasks) if isinstance(found, Line)}


def prompts(count: int) -> Iterator[Task]:
    made = Prompts(TOKENIZER, 0)
    return (made.task(i) for i in range(count))


def test_a_line_holds_what_is_its_own_and_nothing_of_the_passes_that_it_shared() -> None:
    for line in lines(tiny_model(), prompts(9), 3).values():
        rows = [*line.hidden, *line.depths]
        held = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in rows}
        assert sum(held.values()) == sum(each.nbytes for each in rows)
        assert all(len(each) == 1 for each in (line.hidden, line.depths))
        for part in zip(*line.top, strict=True):
            assert len({each.untyped_storage().data_ptr() for each in part}) == 1


def test_what_a_line_says_is_what_the_model_gives_for_its_tokens_alone() -> None:
    base = tiny_model()
    for line in lines(base, prompts(6), 3).values():
        fed = torch.tensor(line.tokens[:-1])
        hidden, inner = base.features(fed, torch.arange(len(fed)), FullAttention(), (0, 1))
        logits = base.logits(hidden)
        assert (torch.cat(line.hidden).float() - hidden).abs().max() < 2e-2
        assert (torch.cat(line.depths, 1).float() - inner).abs().max() < 5e-2
        assert len(line.top) == len(line.tokens) - line.reply
        for place, (ids, top, lse) in enumerate(line.top, line.reply - 1):
            expected = logits[place].topk(16)
            assert torch.allclose(top, expected.values, atol=1e-3) and torch.allclose(
                lse, logits[place].logsumexp(0), atol=1e-3
            )
            assert torch.allclose(logits[place, ids], expected.values, atol=1e-3)


def test_what_is_judged_of_a_drawn_turn_has_the_words_in_it_that_it_was_given_and_some_of_its_own() -> None:
    judged: list[tuple[int, ...]] = []

    def accept(turn: Sequence[int]) -> bool:
        judged.append(tuple(turn))
        return False

    base = tiny_model()
    start = tuple(TOKENIZER.encode("How do"))
    opened = tuple(TOKENIZER.chat([{"role": "user", "content": "x"}])[:1])
    for end in range(base.config.vocab_size):  # whichever token ends the turn: at once, or later
        task = Task(end, (*opened, *start), len(opened), end, (1,), 0.0, end)
        list(Lanes(base, width=1, depths=(0, 1), vocab=261, ends=(256,), accept=accept).run(iter([task])))
    assert len(judged) > 3
    assert all(turn[: len(start)] == start and len(turn) >= len(start) + 2 for turn in judged)


@pytest.mark.skipif(missing() is not None, reason="no native path")
def test_a_task_becomes_the_same_whoever_shares_its_passes() -> None:
    native = NativeDecoder(random_decoder(layers=2, vocab_size=264, context=1024))
    alone, together = lines(native, prompts(8), 1), lines(native, prompts(8), 5)
    assert alone.keys() == together.keys() and len(alone) > 2
    for task, line in alone.items():
        assert line.tokens == together[task].tokens and line.reply == together[task].reply
        assert torch.equal(torch.cat(line.hidden), torch.cat(together[task].hidden))


def test_greedy_replies_are_the_likeliest_tokens_and_warm_ones_are_not_all() -> None:
    base = tiny_model()
    made = Prompts(TOKENIZER, 0)
    found = lines(base, prompts(12), 6)
    differ = 0
    for number, line in found.items():
        likeliest = [int(ids[0]) for ids, _, _ in line.top]
        if made.task(number).temperature == 0.0:
            assert line.tokens[line.reply :] == likeliest
        else:
            differ += line.tokens[line.reply :] != likeliest
    assert differ > 0


def test_a_reply_that_repeats_itself_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.train.lanes.REPLY", 300)
    base = tiny_model()
    base.head.weight.zero_()[65] = 1.0
    base.head.weight[65] *= 0  # all logits equal: greedy says token 0 for ever
    found = lines(base, (task for task in prompts(20) if task.turn_end < 0 and task.temperature == 0.0), 4)
    assert found and all(len(line.tokens) - line.reply == 48 for line in found.values())


def fill_tiny(folder: Path, tokens: int, seed: int = 0) -> data.Progress:
    return fill(folder, Recipe("base", seed, inner_depths(2)), tiny_model(), TOKENIZER, tokens, width=4)


def rows(folder: Path) -> dict[int, tuple[Tensor, ...]]:
    """What the shards hold, by task."""
    found = {}
    for path in shard_paths(folder):
        held = read_shard(path, NAMES)
        bounds, row = held["bounds"].tolist(), 0
        for s, task in enumerate(read_about(path)["tasks"]):
            start, stop = bounds[s], bounds[s + 1]
            count = stop - start - int(held["reply"][s]) + 1
            found[task] = (held["tokens"][start:stop], held["hidden"][start:stop], held["lse"][row : row + count])
            row += count
        assert row == len(held["lse"]) and bounds[-1] == len(held["tokens"]) == len(held["hidden"])
    return found


def test_a_run_that_was_cut_goes_on_with_the_tasks_that_no_shard_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "SHARD", 40)
    whole = fill_tiny(tmp_path / "whole", 200)
    assert whole.tokens >= 200 and len(shard_paths(tmp_path / "whole")) > 2
    fill_tiny(tmp_path / "cut", 60)
    (tmp_path / "cut" / "shard-00009.partial").write_bytes(b"half a shard")
    held = rows(tmp_path / "cut")
    again = fill_tiny(tmp_path / "cut", 200)
    assert again.tokens >= 200
    one, other = rows(tmp_path / "whole"), rows(tmp_path / "cut")
    assert held.keys() < other.keys() and len(other) == again.sequences
    for task in one.keys() & other.keys():
        assert torch.equal(one[task][0], other[task][0])
        assert torch.allclose(one[task][1].float(), other[task][1].float(), atol=2e-2)


def test_a_folder_of_another_recipe_and_a_damaged_shard_are_refused(tmp_path: Path) -> None:
    fill_tiny(tmp_path, 20)
    with pytest.raises(UsageError, match=r"was made with .*another --out"):
        fill_tiny(tmp_path, 40, seed=1)
    shard_paths(tmp_path)[0].write_bytes(b"nothing")
    with pytest.raises(InputError, match="is no shard of training data"):
        fill_tiny(tmp_path, 40)


def test_a_folder_that_holds_enough_is_left_as_it_is(tmp_path: Path) -> None:
    first = fill_tiny(tmp_path, 30)
    before = {path: path.stat().st_mtime_ns for path in shard_paths(tmp_path)}
    again = fill_tiny(tmp_path, 30)
    assert (again.tokens, again.sequences) == (first.tokens, first.sequences)
    assert {path: path.stat().st_mtime_ns for path in shard_paths(tmp_path)} == before
