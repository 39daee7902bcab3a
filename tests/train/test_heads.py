"""Training from end to end on a tiny base: it learns, writes a folder that drafts, and is the same for the same seed."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from toolkit.contracts import SamplingParams
from toolkit.draft.card import Card, read_card
from toolkit.draft.contract import Budget, Commit, Target
from toolkit.draft.medusa import MedusaSource
from toolkit.draft.mtp import MtpSource
from toolkit.errors import InputError, UsageError
from toolkit.model.tiny import tiny_model
from toolkit.text.tokenizer import ByteTokenizer
from toolkit.train.batches import summary
from toolkit.train.data import Recipe, fill
from toolkit.train.loop import Loop
from toolkit.train.medusa import MedusaPlan, train_medusa_on
from toolkit.train.mtp import MtpPlan, train_mtp_on
from toolkit.train.shards import read_about, shard_paths
from toolkit.train.start import started_head

BASE = "0" * 64


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Replies of the tiny model; it says much the same whatever it is asked."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toolkit.train.lanes.REPLY", 40)
        fill(folder, Recipe(BASE, 0, (0, 1)), tiny_model(), ByteTokenizer(), 1500, width=16)
    return folder


def mtp(data: Path, out: Path, **options: int) -> Card:
    plan = MtpPlan(**{"vocab": 200, "size": 1024, "warmup": 5, "epochs": 8, **options})  # type: ignore[arg-type]
    return train_mtp_on(tiny_model(), "tiny", summary([data], BASE), [data], out, plan, lambda line: None)


def medusa(data: Path, out: Path, **options: int) -> Card:
    plan = MedusaPlan(**{"vocab": 200, "size": 1024, "warmup": 5, "epochs": 8, "heads": 3, **options})  # type: ignore[arg-type]
    return train_medusa_on(tiny_model(), "tiny", summary([data], BASE), [data], out, plan, lambda line: None)


KINDS: dict[str, tuple[Callable[..., Card], type[MtpSource] | type[MedusaSource]]] = {
    "mtp": (mtp, MtpSource),
    "medusa": (medusa, MedusaSource),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_folder_has_a_card_and_drafts_for_its_base(kind: str, data: Path, tmp_path: Path) -> None:
    train, source = KINDS[kind]
    card = train(data, tmp_path)
    assert read_card(tmp_path) == card and card.kind == kind and card.fingerprint == BASE
    assert card.data["tokens"] >= 1500 and card.training["batches"] > 8 and card.acceptance["held_out_drafts"] > 0
    assert (tmp_path / "acceptance.svg").exists()
    base = tiny_model()
    target = Target(base, lambda: base, ByteTokenizer(), BASE, "tiny", 261)
    drafter = source(target, {"head": str(tmp_path), "floor": 0.0}).open(0)
    drafter.observe(Commit((1, 2, 3), torch.randn(2, 32), 0))
    assert len(drafter.propose(Budget(4, 2, SamplingParams()))) == 4
    drafter.close()


def test_a_trained_head_is_gone_on_from_over_another_vocabulary(data: Path, tmp_path: Path) -> None:
    first = mtp(data, tmp_path / "first")
    plan = MtpPlan(vocab=150, size=1024, warmup=5, epochs=1)
    about = summary([data], BASE)
    told: list[str] = []
    second = train_mtp_on(tiny_model(), "tiny", about, [data], tmp_path / "second", plan, told.append, tmp_path / "first")
    assert second.training["start"] == sha256((tmp_path / "first/head.safetensors").read_bytes()).hexdigest()
    assert first.training["start"] == ""
    assert second.acceptance["chain_before"][0] == pytest.approx(first.acceptance["chain"][0], abs=0.02)
    with pytest.raises(UsageError, match="not an mtp head for"):
        started_head(tmp_path / "first", tiny_model(), "1" * 64, torch.arange(9))


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_weights(kind: str, data: Path, tmp_path: Path) -> None:
    train, _ = KINDS[kind]
    train(data, tmp_path / "one", epochs=1)
    train(data, tmp_path / "two", epochs=1)
    one, two = (load_file(tmp_path / name / "head.safetensors") for name in ("one", "two"))
    assert all(torch.allclose(one[name].float(), two[name].float(), atol=1e-3) for name in one)


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_that_was_cut_ends_with_the_weights_of_an_uncut_one(kind: str, data: Path, tmp_path: Path) -> None:
    """What a step draws - noise, the vocabulary's sample - depends on its number, not on the run it is taken in."""
    train, _ = KINDS[kind]
    train(data, tmp_path / "whole", epochs=2, save_s=0)
    steps = 0
    step = Loop._step

    def failing(self: Loop[Any], *args: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 4:
            raise KeyboardInterrupt
        return step(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "_step", failing)
        with pytest.raises(KeyboardInterrupt):
            train(data, tmp_path / "cut", epochs=2, save_s=0)
    card = train(data, tmp_path / "cut", epochs=2, save_s=0)
    one, two = (load_file(tmp_path / name / "head.safetensors") for name in ("whole", "cut"))
    assert card.training["batches"] > 4 and all(torch.equal(one[name], two[name]) for name in one)


HARMS: dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
    "bounds that fall": lambda held: held | {"bounds": held["bounds"].flip(0)},
    "a reply behind its end": lambda held: held | {"reply": held["reply"] + 10_000},
    "a reply before its beginning": lambda held: held | {"reply": held["reply"] * 0},
    "fewer rows than tokens": lambda held: held | {"hidden": held["hidden"][:-1]},
    "one word too few": lambda held: held | {"last": held["last"][1:]},
    "halves of tokens": lambda held: held | {"tokens": held["tokens"] + 0.5},
    "tokens of another vocabulary": lambda held: held | {"tokens": held["tokens"] + 1000},
    "answers of another vocabulary": lambda held: held | {"top_ids": held["top_ids"] + 1000},
    "rows of nothing": lambda held: held | {"hidden": held["hidden"] * torch.nan},
    "a dimension too many": lambda held: held | {"lse": held["lse"][:, None]},
}


@pytest.mark.parametrize("name", list(HARMS))
def test_data_that_does_not_fit_together_is_refused_and_no_head_is_written(name: str, data: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for path in shard_paths(data):
        about = {"toolkit-train-data": json.dumps(read_about(path))}
        changed = {key: tensor.contiguous() for key, tensor in HARMS[name](load_file(path)).items()}
        save_file(changed, tmp_path / "data" / path.name, about)
    with pytest.raises(InputError):
        mtp(tmp_path / "data", tmp_path / "out", epochs=1)
    assert not (tmp_path / "out" / "card.json").exists()


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"steps": 99}, {"vocab": 0}, {"sharp": 2.0}, {"noise": -1.0}])
def test_a_plan_that_no_head_can_be_trained_by_is_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        MtpPlan(**wrong)  # type: ignore[arg-type]


def test_training_lowers_the_loss_of_every_depth(data: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toolkit.train.mtp.SHOWN", 1)
        mtp(data, tmp_path, epochs=20)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    for depth in ("loss1", "loss2", "loss3"):
        early, late = (sum(line[depth] for line in part) / len(part) for part in (lines[:4], lines[-4:]))
        assert late < 0.9 * early, depth
