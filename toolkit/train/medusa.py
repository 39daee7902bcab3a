"""Medusa: training of heads on the base's own replies.

In: a base, folders of data, an output folder.   Out: head.safetensors, card.json, acceptance.svg, log.jsonl.
Head i at place p is held against what the base said behind place p+i+1, half of it on the very likeliest token.
Knows nothing about: drafting, the command line.
Source: 2401.10774, Medusa-1: the base stays as it is; departures: soft targets, one output matrix for all heads, the base's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from toolkit.contracts import require
from toolkit.draft.card import Card
from toolkit.draft.medusa_file import MOST_BLOCKS, MOST_HEADS, save_medusa
from toolkit.draft.medusa_head import MedusaHead
from toolkit.model.decoder import Decoder
from toolkit.model.fingerprint import fingerprint
from toolkit.model.store import resolve
from toolkit.model.weights import load_model
from toolkit.train.batches import Batch, Summary, held_out, summary, training
from toolkit.train.loop import Loop, Plan, State
from toolkit.train.measure import Acceptance
from toolkit.train.plot import draw_acceptance
from toolkit.train.soft import candidates, soft_loss
from toolkit.train.start import draft_vocabulary
from toolkit.train.targets import Targets

HELD_TOKENS = 40_000
SHOWN = 50  # batches between two lines of the log
OTHERS = 1024  # tokens besides the targets that a batch's loss sees
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaPlan(Plan):
    """heads: how far ahead; blocks: residual blocks of each; vocab: of the draft; sharp: share of the target on the likeliest token."""

    minutes: float = 20.0
    epochs: int = 3
    size: int = 4096
    heads: int = 4
    blocks: int = 1
    vocab: int = 16384
    sharp: float = 0.5

    def __post_init__(self) -> None:
        Plan.__post_init__(self)
        require(1 <= self.heads <= MOST_HEADS, "heads", self.heads, f"an integer from 1 to {MOST_HEADS}")
        require(self.vocab >= 1, "vocab", self.vocab, "an integer >= 1")
        require(0 <= self.sharp <= 1, "sharp", self.sharp, "a number from 0 to 1")
        require(1 <= self.blocks <= MOST_BLOCKS, "blocks", self.blocks, f"an integer from 1 to {MOST_BLOCKS}")


def train_medusa(base: str, data: Sequence[Path], out: Path, plan: MedusaPlan, tell: Tell) -> Card:
    """Train, measure, write the folder. Goes on with a checkpoint in `out`. UsageError for data of another base."""
    source = resolve(base)
    return train_medusa_on(load_model(source), base, summary(data, fingerprint(source)), data, out, plan, tell)


def train_medusa_on(
    decoder: Decoder, base: str, about: Summary, data: Sequence[Path], out: Path, plan: MedusaPlan, tell: Tell
) -> Card:
    """`train_medusa` with what it loads."""
    tell(f"{about.tokens} reply tokens in {about.sequences} sequences")
    ids = draft_vocabulary(training(data, 0, 0, 1 << 14), decoder.config.vocab_size, plan.vocab)
    D = decoder.config.hidden_size
    dice = torch.Generator().manual_seed(plan.seed)
    # A block that gives nothing leaves the base's own guess; the blocks begin near that.
    weight = torch.randn(plan.heads, plan.blocks, D, D, generator=dice) * 0.2 * D**-0.5
    bias = torch.zeros(plan.heads, plan.blocks, D)
    weights = {f"weight.{i}.{j}": weight[i, j].clone().requires_grad_() for i in range(plan.heads) for j in range(plan.blocks)}
    weights |= {f"bias.{i}.{j}": bias[i, j].clone().requires_grad_() for i in range(plan.heads) for j in range(plan.blocks)}
    task = _Task(weights, ids, decoder.head.weight, plan)
    loop = Loop[Batch](out, weights, plan, {"kind": "medusa"} | about.mark())

    def step(state: State, shown: Mapping[str, float]) -> None:
        if state.step % SHOWN == 0:
            loop.log({"step": state.step, "epoch": state.epoch, "seconds": round(state.seconds), **shown})
            tell(f"step {state.step} {state.seconds:.0f} s  " + "  ".join(f"{k} {v:.4g}" for k, v in shown.items()))

    loop.run(lambda epoch: training(data, plan.seed, epoch, plan.size), max(1, about.fed // plan.size), task.loss, step)
    after = task.measure(data)
    shares = [round(share, 4) for share in after.chain]
    tell(f"after: chain {shares}, {after.tokens_per_pass(plan.heads):.3f} tokens a pass of a chain")
    told = {**asdict(plan), "seconds": round(loop.state.seconds), "batches": loop.state.step}
    shown = {"held_out_drafts": after.drafts, "chain": shares, "conditional": [round(share, 4) for share in after.conditional]}
    card = Card(kind="medusa", base=base, fingerprint=about.fingerprint, data=about.json(), training=told, acceptance=shown)
    save_medusa(out, task.head(), card)
    draw_acceptance(out / "acceptance.svg", {"trained": after.conditional})
    return card


class _Task:
    """The loss and the measurement of some heads."""

    def __init__(self, weights: Mapping[str, Tensor], ids: Tensor, output: Tensor, plan: MedusaPlan) -> None:
        self._weights, self._plan, self._ids = weights, plan, ids
        self._rows = output[ids].to(torch.bfloat16).contiguous()
        self._targets = Targets(ids, len(output), plan.sharp)

    def head(self) -> MedusaHead:
        """The heads as they are now."""
        plan = self._plan
        weight, bias = (
            torch.stack(
                [torch.stack([self._weights[f"{kind}.{i}.{j}"] for j in range(plan.blocks)]) for i in range(plan.heads)]
            )
            for kind in ("weight", "bias")
        )
        return MedusaHead(weight, bias, self._ids)

    def loss(self, batch: Batch, dice: torch.Generator) -> tuple[Tensor, Mapping[str, float]]:
        """The mean over heads, and each head's own."""
        steps = self._unroll(batch)
        asked = [self._targets(batch, i + 1, places) for i, (_, places) in enumerate(steps)]
        pool = candidates(self._rows, torch.cat([ids[weights > 0] for ids, weights in asked]), OTHERS, dice)
        some = pool.place.argmax()  # stands where a target is not in the draft vocabulary; its weight is 0
        losses = [
            soft_loss(rows, pool, torch.where(weights > 0, ids, some), weights)
            for (rows, _), (ids, weights) in zip(steps, asked, strict=True)
        ]
        return torch.stack(losses).mean(), {f"loss{i + 1}": loss.item() for i, loss in enumerate(losses)}

    @torch.no_grad()
    def measure(self, data: Sequence[Path]) -> Acceptance:
        """Acceptance of the heads' likeliest chain, by depth, on held-out sequences."""
        found = Acceptance(self._plan.heads)
        for batch in held_out(data, 1 << 12, HELD_TOKENS):
            chosen = batch.top_ids[..., 0].reshape(-1)
            guesses = []
            for i, (rows, places) in enumerate(self._unroll(batch)):
                said = self._ids[F.linear(rows.to(torch.bfloat16), self._rows).argmax(1)]
                guesses.append((places + i, said == chosen[places + i + 1]))
            found.add(guesses, batch.top_ids[..., 0].numel())
        return found

    def _unroll(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """For every head its rows [A, D] and the flat places [A] of the hidden rows that they come from."""
        B, T, D = batch.hidden.shape
        found = []
        live = batch.active.clone()
        with torch.autocast("cpu", torch.bfloat16):
            for i in range(self._plan.heads):
                live = live & batch.active.roll(-i - 1, 1)
                live[:, T - i - 1 :] = False
                places = live.reshape(-1).nonzero()[:, 0]
                x = batch.hidden.view(B * T, D)[places]
                for j in range(self._plan.blocks):
                    x = x + F.silu(F.linear(x, self._weights[f"weight.{i}.{j}"], self._weights[f"bias.{i}.{j}"]))
                found.append((x, places))
        return found
