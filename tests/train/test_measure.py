"""Acceptance against counting by hand, batches against the lines they were made of, targets and the plot."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from tests.train.rows import VOCAB, folder_of, line
from toolkit.contracts import Json
from toolkit.errors import InputError, UsageError
from toolkit.train.batches import HELD, Batch, held_out, summary, training
from toolkit.train.measure import Acceptance
from toolkit.train.plot import draw_acceptance
from toolkit.train.shards import write_shard
from toolkit.train.targets import Targets


def test_a_draft_counts_to_the_depth_to_which_all_its_guesses_are_right() -> None:
    found = Acceptance(3)
    # places 2 .. 6; depth s+1 is known at places 2+s .. 6; row s of `right` is by place
    right = [[1, 1, 0, 1, 1], [0, 1, 0, 1], [1, 1, 1]]
    found.add([(torch.arange(2 + s, 7), torch.tensor(good, dtype=torch.bool)) for s, good in enumerate(right)], 10)
    # drafts begin at 2, 3, 4: (1 0 .), (1 1 1), (0 ..)
    assert (found.drafts, found.right) == (3, [2, 1, 1])
    assert found.chain == [2 / 3, 1 / 3, 1 / 3] and found.conditional == [2 / 3, 1 / 2, 1.0]
    assert found.tokens_per_pass(2) == pytest.approx(2.0)


def test_batches_hold_every_training_line_once_and_no_held_out_one(tmp_path: Path) -> None:
    lines = [line(task, 8 + task % 7, 4) for task in range(1, 70)]
    folder = folder_of(tmp_path, lines, shards=3)
    seen = [
        tuple(row[: n + 1].tolist()) for b in training([folder], 0, 0, 40) for row, n in zip(b.tokens, b.lengths, strict=True)
    ]
    assert sorted(seen) == sorted(tuple(each.tokens) for each in lines if each.task % HELD)
    kept = [
        tuple(row[: n + 1].tolist()) for b in held_out([folder], 40, 10**6) for row, n in zip(b.tokens, b.lengths, strict=True)
    ]
    assert sorted(kept) == sorted(tuple(each.tokens) for each in lines if each.task % HELD == 0)


def test_an_epoch_mixes_the_shards_of_all_its_folders_and_holds_out_lines_of_each(tmp_path: Path) -> None:
    first = folder_of(tmp_path / "first", [line(task, 8 + task % 7, 4) for task in range(1, 70)], base="0" * 64, shards=4)
    second = folder_of(tmp_path / "second", [line(task, 9 + task % 5, 4) for task in range(1, 40)], "0" * 64, 4, seed=5)
    both = [first, second]

    def lines(batches: Iterable[Batch]) -> list[tuple[int, ...]]:
        return [tuple(row[: n + 1].tolist()) for b in batches for row, n in zip(b.tokens, b.lengths, strict=True)]

    mixed = lines(training(both, 0, 0, 40))
    apart = [lines(training([folder], 0, 0, 40)) for folder in both]
    assert sorted(mixed) == sorted(apart[0] + apart[1])
    places = [i for i, each in enumerate(mixed) if each in apart[1] and each not in apart[0]]
    assert places[-1] - places[0] >= len(places), "the second folder's lines come in one piece"
    assert lines(held_out(both, 40, 10**6)) == [each for folder in both for each in lines(held_out([folder], 40, 10**6))]
    about = summary(both, "0" * 64)
    assert (about.seeds, about.shards, about.sequences) == ([0, 5], 8, 108)


def test_an_epoch_is_the_same_for_the_same_seed_and_another_for_another(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, [line(task, 8 + task % 7, 4) for task in range(1, 60)], shards=2)

    def order(seed: int, epoch: int) -> list[list[int]]:
        return [batch.tokens[:, 0].tolist() for batch in training([folder], seed, epoch, 40)]

    assert order(1, 0) == order(1, 0) and order(1, 0) != order(1, 1) and order(1, 0) != order(2, 0)


def test_a_batch_holds_what_its_lines_said_at_their_own_places(tmp_path: Path) -> None:
    lines = [line(1, 10, 4), line(2, 7, 3)]
    (batch,) = training([folder_of(tmp_path, lines)], 0, 0, 100)
    for each in lines:
        row = next(i for i, n in enumerate(batch.lengths) if int(n) == len(each.tokens) - 1)
        assert batch.active[row].nonzero()[:, 0].tolist() == list(range(each.reply - 1, len(each.tokens) - 1))
        for place, (ids, logits, lse) in enumerate(each.top, each.reply - 1):
            assert batch.top_ids[row, place].tolist() == ids[:8].tolist()
            assert torch.allclose(batch.probs[row, place], (logits - lse).exp()[:8], atol=1e-2)
        assert torch.allclose(batch.hidden[row, : len(each.tokens) - 1], torch.cat(each.hidden), atol=1e-2)


def test_targets_keep_the_bases_mass_sharpen_its_choice_and_lose_what_cannot_be_guessed(tmp_path: Path) -> None:
    (batch,) = training([folder_of(tmp_path, [line(1, 10, 4)])], 0, 0, 100)
    ids = torch.arange(0, VOCAB, 2)
    places = torch.tensor([3, 5])
    said, weights = Targets(ids, VOCAB, 0.5)(batch, 1, places)
    for row, place in enumerate(places.tolist()):
        for k in range(8):
            token, share = int(batch.top_ids[0, place + 1, k]), float(batch.probs[0, place + 1, k]) / 2 + 0.5 * (k == 0)
            if token % 2:
                assert float(weights[row, k]) == 0.0
            else:
                assert int(ids[said[row, k]]) == token and float(weights[row, k]) == pytest.approx(share)


def test_data_of_another_base_and_a_folder_without_data_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "data", [line(1, 10, 4)], base="0" * 64)
    assert summary([folder], "0" * 64).tokens == 6
    with pytest.raises(UsageError, match="was made by the base 000000000000, not by 1111"):
        summary([folder], "1" * 64)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no training data"):
        summary([folder, tmp_path / "empty"], "0" * 64)
    with pytest.raises(UsageError, match="is given twice"):
        summary([folder, tmp_path / "empty" / ".." / "data"], "0" * 64)


@pytest.mark.parametrize("recipe", [{}, {"base": 1, "seed": 0}, {"base": "b", "seed": [0]}, {"base": "b"}])
def test_a_shard_whose_recipe_names_no_base_and_seed_is_refused(recipe: dict[str, Json], tmp_path: Path) -> None:
    write_shard(tmp_path, 0, [line(1, 10, 4)], [], recipe)
    with pytest.raises(InputError, match="its recipe names no base and seed"):
        summary([tmp_path], "b")


def test_the_plot_is_a_whole_svg_with_a_line_for_every_series(tmp_path: Path) -> None:
    draw_acceptance(tmp_path / "a.svg", {"<before>": [0.2, 0.1], "after": [0.5, 0.4, 0.3]})
    root = ET.parse(tmp_path / "a.svg").getroot()
    assert len(root.findall("{*}polyline")) == 2
    assert "<before>" in {text.text for text in root.findall("{*}text")}
