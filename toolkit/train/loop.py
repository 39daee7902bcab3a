"""Loop: Muon for matrices and AdamW for vectors, with a cosine schedule, checkpoints that a later run goes on from, a log of what happened.

In: weights, batches, a loss of a batch.   Out: trained weights, in place.
Knows nothing about: what the weights are, what a batch holds.
Invariants: the same seed and data give the same steps until time runs out; a run that was cut goes on where its last checkpoint
stands, and what a step draws depends on seed and step alone (`dice`), so that it ends where an uncut one does; checkpoints appear whole or not at all. The schedule ends with the epochs or with the minutes, whichever comes first.
Source: Muon (Jordan et al. 2024, steps sized as AdamW's: 2502.16982), which on this task learned from half the tokens that AdamW
needed; AdamW 1711.05101.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

from toolkit.contracts import Json, require
from toolkit.errors import InputError, UsageError

CHECKPOINT, LOG = "checkpoint.safetensors", "log.jsonl"
B = TypeVar("B")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to train. size: padded tokens of a batch; minutes: of wall time, all runs together."""

    minutes: float = 42.0
    epochs: int = 4
    seed: int = 0
    rate: float = 2e-3
    size: int = 2048
    warmup: int = 40  # batches
    decay: float = 0.01
    clip: float = 1.0
    save_s: float = 120.0  # seconds between checkpoints

    def __post_init__(self) -> None:
        require(0 < self.minutes < 1e6, "minutes", self.minutes, "a number > 0")
        require(1 <= self.epochs <= 1000, "epochs", self.epochs, "an integer from 1 to 1000")
        require(self.seed >= 0, "seed", self.seed, "an integer >= 0")
        require(0 < self.rate < 1, "rate", self.rate, "a number between 0 and 1")


@dataclass(slots=True)
class State:
    """Where a run stands: batches of the current epoch done, and seconds spent so far."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    seconds: float = 0.0
    finished: bool = False

    @classmethod
    def of(cls, told: Mapping[str, Json]) -> State:
        """From a checkpoint. ValueError for what cannot be a state."""
        state = cls(**told)
        counts = (state.epoch, state.batch, state.step)
        if any(type(each) is not int or not 0 <= each < 1 << 40 for each in counts) or type(state.finished) is not bool:
            raise ValueError(f"its state {told} is none")
        if not (isinstance(state.seconds, int | float) and 0 <= state.seconds < math.inf):
            raise ValueError(f"it has trained for {state.seconds} seconds")
        return state


class Loop(Generic[B]):
    """`about` identifies what is trained on what: a checkpoint of something else in the folder is refused."""

    def __init__(self, folder: Path, weights: Mapping[str, Tensor], plan: Plan, about: Mapping[str, Json]) -> None:
        self.folder, self.weights, self.plan = folder, weights, plan
        self._about = json.dumps({**about, "plan": asdict(plan)}, sort_keys=True)
        self.state = State()
        matrices, vectors = ([w for w in weights.values() if (w.dim() == 2) is flat] for flat in (True, False))
        self._optimisers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=plan.rate, weight_decay=plan.decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(vectors, lr=plan.rate, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / CHECKPOINT).exists():
            self._recall()

    def run(
        self,
        batches: Callable[[int], Iterator[B]],
        count: int,
        loss: Callable[[B, torch.Generator], tuple[Tensor, Mapping[str, float]]],
        tell: Callable[[State, Mapping[str, float]], None],
    ) -> None:
        """Train. batches(epoch) gives an epoch of about `count` batches; loss(batch, dice) gives what to lower and what to print.

        InputError where a loss is no finite number: what was learnt before stands in the last checkpoint.
        """  # fmt: skip
        state, plan = self.state, self.plan
        saved = began = time.monotonic()
        before = state.seconds
        while state.epoch < plan.epochs and not state.finished:
            for number, batch in enumerate(batches(state.epoch)):
                if number < state.batch:  # done before the run was cut
                    continue
                share = max((state.epoch + number / count) / plan.epochs, state.seconds / (60 * plan.minutes))
                if share >= 1.0:
                    state.finished = True
                    break
                shown = self._step(batch, loss, share)
                state.batch, state.step = number + 1, state.step + 1
                state.seconds = before + time.monotonic() - began
                tell(state, shown)
                if time.monotonic() - saved > plan.save_s:
                    self._save()
                    saved = time.monotonic()
            else:
                state.epoch, state.batch = state.epoch + 1, 0
        state.finished = True
        self._save()

    def _step(
        self, batch: B, loss: Callable[[B, torch.Generator], tuple[Tensor, Mapping[str, float]]], share: float
    ) -> Mapping[str, float]:
        plan = self.plan
        rate = plan.rate * min(1.0, (self.state.step + 1) / plan.warmup) * (0.02 + 0.49 * (1 + math.cos(math.pi * share)))
        total, shown = loss(batch, dice(plan.seed, self.state.step))
        if not bool(torch.isfinite(total)):
            raise InputError(
                f"the loss of step {self.state.step + 1} is {float(total.detach())}: there is nothing to learn from it",
                hint="check the data, or give a lower --rate and another --out folder",
            )
        for optimiser in self._optimisers:
            optimiser.zero_grad()
            for group in optimiser.param_groups:
                group["lr"] = rate
        total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.weights.values(), plan.clip)
        for optimiser in self._optimisers:
            optimiser.step()
        return {**shown, "rate": rate}

    def log(self, line: Mapping[str, Json]) -> None:
        """One more line in the folder's log."""
        with (self.folder / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _save(self) -> None:
        from safetensors.torch import save_file

        tensors = {f"weight.{name}": w.detach() for name, w in self.weights.items()}
        for name, w in self.weights.items():
            for optimiser in self._optimisers:
                tensors |= {f"moment.{key}.{name}": value for key, value in optimiser.state.get(w, {}).items()}
        spare = self.folder / f"{CHECKPOINT}.partial"
        save_file(tensors, spare, {"about": self._about, "state": json.dumps(asdict(self.state))})
        spare.replace(self.folder / CHECKPOINT)

    def _recall(self) -> None:
        from safetensors import SafetensorError, safe_open

        path = self.folder / CHECKPOINT
        try:
            with safe_open(path, framework="pt") as file:
                told = file.metadata() or {}
                if told.get("about") != self._about:
                    raise UsageError(
                        f"{path} belongs to another training (base, data or options differ)", hint="give another --out folder"
                    )
                self.state = State.of(json.loads(told["state"]))
                held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            with torch.no_grad():
                for name, w in self.weights.items():
                    w.copy_(held[f"weight.{name}"])
                    optimiser = self._optimisers[0 if w.dim() == 2 else 1]
                    keys = {key.split(".")[1] for key in held if key.startswith("moment.") and key.split(".", 2)[2] == name}
                    optimiser.state[w] = {key: held[f"moment.{key}.{name}"] for key in keys}
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is no checkpoint: {error}", hint="remove it to begin anew") from error


def dice(seed: int, step: int) -> torch.Generator:
    """Random numbers of one step, whenever it is taken."""
    return torch.Generator().manual_seed((seed * 1_000_003 + step) % 2**63)


def use_threads(count: int) -> None:
    """Torch's threads, one number for the whole process."""
    torch.set_num_threads(count)
