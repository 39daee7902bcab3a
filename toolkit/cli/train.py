"""Command train: training data of a base model, drafting heads on it, and heads as draft checkpoints for SGLang."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.kinds import TEXT, place
from toolkit.cli.options import json_option
from toolkit.cli.output import console, emit

if TYPE_CHECKING:
    from toolkit.draft.card import Card
    from toolkit.train.data import Progress

base_option = click.option(
    "--base", default="smollm2", type=TEXT, show_default=True, help="The model that the head drafts for."
)
data_option = click.option(
    "--data", required=True, multiple=True, type=place(exists=True, files=False), help="A folder of `train data`; repeatable."
)
out_option = click.option("--out", required=True, type=place(files=False), help="The folder that is written.")
threads_option = click.option("--threads", type=click.IntRange(1, 1024), help="Torch's threads.")
seed_option = click.option("--seed", default=0, type=click.IntRange(0), show_default=True, help="Of everything that is drawn.")


@click.group(short_help="Heads that draft for a base model.")
def train() -> None:
    """From a base model to a head that drafts for it: data, mtp or medusa, export. Every step goes on where it was cut."""


@train.command(short_help="The base's own replies.")
@base_option
@out_option
@click.option("--tokens", default=2_000_000, type=click.IntRange(1), show_default=True, help="Of replies, all runs together.")
@click.option("--lanes", default=64, type=click.IntRange(1, 1024), show_default=True, help="Sequences decoded together.")
@seed_option
@threads_option
@json_option
def data(base: str, out: Path, tokens: int, lanes: int, seed: int, threads: int | None, as_json: bool) -> None:
    """Let the base answer many prompts, its own ones among them, and keep what its layers and its head said."""
    from toolkit.train.data import make_data

    _set_threads(threads)
    with _bar(tokens) as moved:
        found = make_data(base, out, tokens, seed=seed, width=lanes, tell=lambda now: moved(now.tokens, _pace(now)))
    click.echo(f"{out}: {found.tokens} reply tokens, {_pace(found)}", err=True)
    if as_json:
        emit(
            {
                "folder": str(out),
                "tokens": found.tokens,
                "sequences": found.sequences,
                "refused": found.refused,
                "rate": found.rate,
            }
        )
    else:
        click.echo(out)


@train.command(short_help="An MTP head.")
@base_option
@data_option
@out_option
@click.option("--minutes", type=float, help="Of wall time, all runs together.  [default: 42]")
@click.option("--epochs", type=int, help="Times over the data at most.  [default: 4]")
@click.option("--steps", type=int, help="How deep the head is unrolled in training.  [default: 3]")
@click.option("--rate", type=float, help="Highest learning rate; a head that is gone on from wants less.  [default: 0.002]")
@click.option("--vocab", type=int, help="Tokens that the head can guess, the most frequent ones.  [default: 12288]")
@click.option(
    "--start", type=place(exists=True, files=False), help="A trained head to go on from.  [default: the base's last layer]"
)
@seed_option
@threads_option
@json_option
def mtp(
    base: str, data: tuple[Path, ...], out: Path, start: Path | None, threads: int | None, as_json: bool, **given: Any
) -> None:  # fmt: skip
    """Train a multi-token-prediction module: one layer that reads the base's hidden rows and, deeper, its own."""
    from toolkit.train.mtp import MtpPlan, train_mtp

    _set_threads(threads)
    plan = MtpPlan(**{name: value for name, value in given.items() if value is not None})
    _print(train_mtp(base, data, out, plan, _say, start), out, as_json)


@train.command(short_help="Medusa heads.")
@base_option
@data_option
@out_option
@click.option("--minutes", type=float, help="Of wall time, all runs together.  [default: 20]")
@click.option("--epochs", type=int, help="Times over the data at most.  [default: 3]")
@click.option("--heads", type=int, help="How far ahead.  [default: 4]")
@click.option("--blocks", type=int, help="Residual blocks of a head.  [default: 1]")
@click.option("--vocab", type=int, help="Tokens that the heads can guess, the most frequent ones.  [default: 16384]")
@seed_option
@threads_option
@json_option
def medusa(base: str, data: tuple[Path, ...], out: Path, threads: int | None, as_json: bool, **given: Any) -> None:
    """Train heads that guess the next tokens from one hidden row, all at once."""
    from toolkit.train.medusa import MedusaPlan, train_medusa

    _set_threads(threads)
    plan = MedusaPlan(**{name: value for name, value in given.items() if value is not None})
    _print(train_medusa(base, data, out, plan, _say), out, as_json)


@train.command(short_help="A draft checkpoint for SGLang.")
@base_option
@click.option("--head", type=TEXT, help="A folder of `train mtp`.  [default: the head that comes with the package]")
@click.option("--format", "kind", default="sglang-eagle", type=click.Choice(["sglang-eagle"]), show_default=True)
@out_option
@json_option
def export(base: str, head: str | None, kind: str, out: Path, as_json: bool) -> None:
    """Write a head as a folder that SGLang serves with --speculative-algorithm EAGLE."""
    from toolkit.train.export import export_sglang_eagle

    command = export_sglang_eagle(base, head or "", out)
    click.echo(f"serve it with: {command}", err=True)
    if as_json:
        emit({"folder": str(out), "format": kind, "command": command})
    else:
        click.echo(out)


def _set_threads(threads: int | None) -> None:
    if threads is not None:
        from toolkit.train.loop import use_threads

        use_threads(threads)


def _pace(now: Progress) -> str:
    return f"{now.sequences} replies, {now.refused} prompts refused, {now.rate:.0f} tokens/s"


def _say(line: str) -> None:
    click.echo(line, err=True)


def _print(card: Card, out: Path, as_json: bool) -> None:
    if as_json:
        emit({"folder": str(out), "kind": card.kind, "fingerprint": card.fingerprint, "acceptance": card.acceptance})
    else:
        click.echo(out)


@contextmanager
def _bar(total: int) -> Iterator[Any]:
    """A bar: call it with what is done and a line about it."""
    from rich import progress

    with progress.Progress(console=console(), transient=True) as bar:
        task = bar.add_task("replies", total=total)
        yield lambda done, text: bar.update(task, completed=done, description=text)
