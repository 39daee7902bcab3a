"""MTP: training of a head on the base's own replies.

In: a base, folders of data, an output folder.   Out: head.safetensors, card.json, acceptance.svg, log.jsonl.
Loss: soft cross-entropy at every depth against the base's likeliest tokens, half of it on the very likeliest, less at later depths.
Knows nothing about: drafting, the command line.
Source: 2401.15077, 2503.01840 (own outputs as inputs in training); departures: features are not regressed, targets are sharpened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from toolkit.contracts import Json, require
from toolkit.draft.card import Card
from toolkit.draft.mtp_file import assemble, save_mtp, weights_of
from toolkit.draft.mtp_head import MtpHead
from toolkit.model.decoder import Decoder
from toolkit.model.fingerprint import fingerprint
from toolkit.model.store import resolve
from toolkit.model.weights import load_model
from toolkit.train.batches import Batch, Summary, held_out, summary, training
from toolkit.train.loop import Loop, Plan, State
from toolkit.train.measure import Acceptance
from toolkit.train.plot import draw_acceptance
from toolkit.train.soft import candidates, soft_loss
from toolkit.train.start import draft_vocabulary, first_head, started_head
from toolkit.train.targets import Targets
from toolkit.train.unroll import unroll

MOST_STEPS = 16
DEPTHS = 5  # held-out acceptance is measured to here
HELD_TOKENS = 40_000
SHOWN = 50  # batches between two lines of the log
OTHERS = 1024  # tokens besides the targets that a batch's loss sees
FADE = 0.8  # weight of a depth's loss against that of the one before
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpPlan(Plan):
    """steps: how deep the head is unrolled in training; vocab: of the draft; sharp: share of the target on the likeliest token;
    noise: spread of what is added to the base's rows, whose own is about 1.9, so that few replies are not learned by heart.
    """

    steps: int = 3
    vocab: int = 12288
    sharp: float = 0.5
    noise: float = 0.1

    def __post_init__(self) -> None:
        Plan.__post_init__(self)
        require(1 <= self.steps <= MOST_STEPS, "steps", self.steps, f"an integer from 1 to {MOST_STEPS}")
        require(self.vocab >= 1, "vocab", self.vocab, "an integer >= 1")
        require(0 <= self.sharp <= 1, "sharp", self.sharp, "a number from 0 to 1")
        require(0 <= self.noise < 100, "noise", self.noise, "a number from 0 to 100")


def train_mtp(base: str, data: Sequence[Path], out: Path, plan: MtpPlan, tell: Tell, start: Path | None = None) -> Card:
    """Train, measure, write the folder. Goes on with a checkpoint in `out`. UsageError for data of another base.

    `start` is a trained head that more data goes into, its draft vocabulary chosen anew; None begins with the base's last layer.
    """
    source = resolve(base)
    return train_mtp_on(load_model(source), base, summary(data, fingerprint(source)), data, out, plan, tell, start)


def train_mtp_on(
    decoder: Decoder, base: str, about: Summary, data: Sequence[Path], out: Path, plan: MtpPlan, tell: Tell,
    start: Path | None = None,
) -> Card:  # fmt: skip
    """`train_mtp` with what it loads."""
    tell(f"{about.tokens} reply tokens in {about.sequences} sequences")
    ids = draft_vocabulary(training(data, 0, 0, 1 << 14), decoder.config.vocab_size, plan.vocab)
    if start is None:
        head, begun = first_head(decoder, ids, islice(training(data, plan.seed, 0, 1 << 13), 12)), ""
    else:
        head, begun = started_head(start, decoder, about.fingerprint, ids)
    weights = {name: tensor.clone().contiguous().requires_grad_() for name, tensor in weights_of(head).items()}
    head = assemble(head.config, {**weights, "ids": ids})
    task = _Task(head, decoder.embedding, decoder.head.weight[ids], plan)
    loop = Loop[Batch](out, weights, plan, {"kind": "mtp", "start": begun} | about.mark())
    before = task.measure(data)
    tell(f"before: {_shown(before)}")

    def step(state: State, shown: Mapping[str, float]) -> None:
        if state.step % SHOWN == 0:
            loop.log({"step": state.step, "epoch": state.epoch, "seconds": round(state.seconds), **shown})
            tell(
                f"step {state.step} epoch {state.epoch} {state.seconds:.0f} s  "
                + "  ".join(f"{k} {v:.4g}" for k, v in shown.items())
            )

    count = max(1, about.fed // plan.size)
    loop.run(lambda epoch: training(data, plan.seed, epoch, plan.size), count, task.loss, step)
    after = task.measure(data)
    tell(f"after: {_shown(after)}")
    card = _card(base, about.fingerprint, about.json(), plan, loop.state, begun, before, after)
    save_mtp(out, head, card)
    draw_acceptance(out / "acceptance.svg", {"before training": before.conditional, "trained": after.conditional})
    return card


class _Task:
    """The loss and the measurement of one head."""

    def __init__(self, head: MtpHead, embedding: Tensor, rows: Tensor, plan: MtpPlan) -> None:
        self._head, self._embedding, self._plan = head, embedding, plan
        self._rows = rows.to(torch.bfloat16).contiguous()
        self._targets = Targets(head.ids, len(embedding), plan.sharp)

    def loss(self, batch: Batch, dice: torch.Generator) -> tuple[Tensor, Mapping[str, float]]:
        """The weighted sum over depths, and each depth's own."""
        batch.hidden.add_(torch.randn(batch.hidden.shape, generator=dice), alpha=self._plan.noise)
        with torch.autocast("cpu", torch.bfloat16):
            steps = unroll(self._head, self._embedding, batch, self._plan.steps)
        asked = [self._targets(batch, 1, step.places) for step in steps]
        pool = candidates(self._rows, torch.cat([ids[weights > 0] for ids, weights in asked]), OTHERS, dice)
        some = pool.place.argmax()  # stands where a target is not in the draft vocabulary; its weight is 0
        losses = [
            soft_loss(step.rows, pool, torch.where(weights > 0, ids, some), weights)
            for step, (ids, weights) in zip(steps, asked, strict=True)
        ]
        total = torch.stack([FADE**depth * loss for depth, loss in enumerate(losses)]).sum()
        return total, {f"loss{depth + 1}": loss.item() for depth, loss in enumerate(losses)}

    @torch.no_grad()
    def measure(self, data: Sequence[Path]) -> Acceptance:
        """Acceptance by depth on held-out sequences."""
        found = Acceptance(DEPTHS)
        for batch in held_out(data, 1 << 12, HELD_TOKENS):
            with torch.autocast("cpu", torch.bfloat16):
                steps = unroll(self._head, self._embedding, batch, DEPTHS)
            chosen = batch.top_ids[..., 0].reshape(-1).roll(-1)
            guesses = [
                (
                    step.places,
                    self._head.ids[F.linear(step.rows.to(torch.bfloat16), self._rows).argmax(1)] == chosen[step.places],
                )
                for step in steps
            ]
            found.add(guesses, batch.tokens[:, 1:].numel())
        return found


def _shown(found: Acceptance) -> str:
    return " ".join(f"{share:.3f}" for share in found.conditional) + f", {found.tokens_per_pass(4):.3f} tokens a pass of 4"


def _card(
    base: str, mark: str, data: dict[str, Json], plan: MtpPlan, state: State, begun: str, before: Acceptance, after: Acceptance
) -> Card:  # fmt: skip
    training_ = {
        **asdict(plan),
        "start": begun,
        "seconds": round(state.seconds),
        "batches": state.step,
        "epochs_begun": state.epoch + 1,
    }
    shown = {
        "held_out_drafts": after.drafts,
        "conditional": [round(share, 4) for share in after.conditional],
        "chain": [round(share, 4) for share in after.chain],
        "chain_before": [round(share, 4) for share in before.chain],
        "tokens_per_pass_of_4": round(after.tokens_per_pass(4), 4),
    }
    return Card(kind="mtp", base=base, fingerprint=mark, data=data, training=training_, acceptance=shown)
