"""Loop: the same steps for the same seed, and a run that was cut ends where an uncut one does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from toolkit.errors import InputError, UsageError
from toolkit.train.loop import CHECKPOINT, Loop, Plan, State


class StopNowError(Exception):
    pass


class Task:
    """A linear map is to be found from noise."""

    def __init__(self) -> None:
        dice = torch.Generator().manual_seed(0)
        self.weights = {"a": torch.randn(6, 4, generator=dice).requires_grad_(), "b": torch.zeros(6).requires_grad_()}
        self.goal = torch.randn(6, 4, generator=dice)

    def batches(self, epoch: int) -> Iterator[Tensor]:
        return iter(torch.randn(10, 16, 4, generator=torch.Generator().manual_seed(epoch)))

    def loss(self, x: Tensor, dice: torch.Generator) -> tuple[Tensor, Mapping[str, float]]:
        x = x + 0.1 * torch.randn(x.shape, generator=dice)
        off = x @ self.weights["a"].T + self.weights["b"] - x @ self.goal.T
        return off.square().mean(), {"loss": float(off.detach().square().mean())}


def train(folder: Path, *, stop_at: int = -1, **options: float) -> tuple[Task, State]:
    task = Task()
    plan = Plan(**{"epochs": 12, "rate": 0.4, "warmup": 4, "save_s": 0.0, **options})  # type: ignore[arg-type]
    loop = Loop[Tensor](folder, task.weights, plan, {"kind": "test"})

    def tell(state: State, shown: Mapping[str, float]) -> None:
        loop.log({"step": state.step, **shown})
        if state.step == stop_at:
            raise StopNowError

    loop.run(task.batches, 10, task.loss, tell)
    return task, loop.state


def test_it_learns(tmp_path: Path) -> None:
    task, state = train(tmp_path)
    assert (task.weights["a"] - task.goal).abs().max() < 0.2
    assert state.finished and state.step == 120
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < 0.05 * lines[0]["loss"]


@pytest.mark.parametrize("stop_at", [1, 7, 10, 55])
def test_a_run_that_was_cut_ends_where_an_uncut_one_does(tmp_path: Path, stop_at: int) -> None:
    whole, _ = train(tmp_path / "whole")
    with pytest.raises(StopNowError):
        train(tmp_path / "cut", stop_at=stop_at)
    again, state = train(tmp_path / "cut")
    assert state.step == 120
    assert all(torch.allclose(whole.weights[name], again.weights[name], atol=1e-6) for name in whole.weights)


def test_a_finished_run_is_not_trained_on(tmp_path: Path) -> None:
    first, _ = train(tmp_path)
    again, state = train(tmp_path)
    assert state.step == 120 and torch.equal(first.weights["a"], again.weights["a"])


def test_when_time_is_up_it_stops(tmp_path: Path) -> None:
    _, state = train(tmp_path, minutes=1e-9, epochs=1000)
    assert state.finished and state.step < 20


def test_a_checkpoint_of_another_training_and_a_damaged_one_are_refused(tmp_path: Path) -> None:
    train(tmp_path)
    with pytest.raises(UsageError, match="belongs to another training"):
        train(tmp_path, rate=0.3)
    (tmp_path / CHECKPOINT).write_bytes(b"no tensors")
    with pytest.raises(InputError, match="is no checkpoint"):
        train(tmp_path)


@pytest.mark.parametrize(
    "told", [{"epoch": -1}, {"batch": "x"}, {"seconds": -1.0}, {"step": 0.5}, {"finished": 1}, {"more": 1}]
)
def test_a_checkpoint_that_stands_nowhere_is_refused(tmp_path: Path, told: dict[str, object]) -> None:
    train(tmp_path, epochs=1)
    path = tmp_path / CHECKPOINT
    with safe_open(path, framework="pt") as file:
        about = file.metadata()["about"]
    save_file(load_file(path), path, {"about": about, "state": json.dumps(told)})
    with pytest.raises(InputError, match="is no checkpoint"):
        train(tmp_path, epochs=1)


def test_a_loss_that_is_no_number_ends_the_run_and_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    train(tmp_path, epochs=1)
    before = (tmp_path / CHECKPOINT).read_bytes()
    task = Task()
    (tmp_path / "other").mkdir()
    with pytest.raises(InputError, match="the loss of step 1 is nan"):
        loop = Loop[Tensor](tmp_path / "other", task.weights, Plan(), {"kind": "test"})
        loop.run(task.batches, 10, lambda x, dice: (x.sum() * torch.nan, {}), lambda state, shown: None)
    assert not (tmp_path / "other" / CHECKPOINT).exists() and (tmp_path / CHECKPOINT).read_bytes() == before


@pytest.mark.parametrize("wrong", [{"minutes": 0.0}, {"epochs": 0}, {"seed": -1}, {"rate": 1.5}])
def test_a_plan_that_cannot_be_is_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Plan(**wrong)  # type: ignore[arg-type]
