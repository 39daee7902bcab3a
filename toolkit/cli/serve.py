"""Command serve: a real SGLang server in the foreground."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from toolkit.cli.kinds import TEXT
from toolkit.cli.options import json_option
from toolkit.cli.output import emit

if TYPE_CHECKING:
    from toolkit.lang.launch import Launch
    from toolkit.lang.presets import Speculation

TERMINATED = 143
LONG = 3600.0


@click.command(short_help="A real SGLang server, with a GPU or without.")
@click.option(
    "--model", default="smollm2", type=TEXT, show_default=True, help="A stored model, a folder, a .gguf file, a hub name."
)
@click.option(
    "--drafter", "--speculative", "preset", default="none", show_default=True, type=TEXT,
    help="none, mtp (= nextn), eagle, eagle3, ngram, standalone.",
)  # fmt: skip
@click.option("--draft-model", type=TEXT, help="The drafter's model: eagle, eagle3 and standalone need one.")
@click.option("--steps", type=int, help="Draft passes a round: the depth of the tree.")
@click.option("--topk", type=int, help="Branches of a node of the tree; 1 is a chain.")
@click.option("--draft-tokens", type=int, help="Tokens verified a round, the last certain one among them.")
@click.option("--device", type=click.Choice(["auto", "cuda", "cpu"]), default="auto", show_default=True)
@click.option("--host", type=TEXT, default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=30000, show_default=True)
@click.option(
    "--deadline",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds to its first answer.",
)
@click.option("--verbose", is_flag=True, help="Show SGLang's own log.")
@click.option("--dry-run", is_flag=True, help="Print the command, start nothing.")
@json_option
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- FLAGS]")
def serve(dry_run: bool, deadline: float, verbose: bool, as_json: bool, **options: Any) -> None:
    """Start SGLang's server for a model and keep it until Ctrl-C. Its URL goes to stdout once it answers.

    FLAGS after -- are passed to sglang.launch_server as they are. On a GPU they are SGLang's own business; without one the
    server runs on stand-ins for what has no CPU build, in float32, for dense Llama-like models.
    """
    from toolkit.lang.presets import Speculation

    names = {"preset": "preset", "draft_model": "draft", "steps": "steps", "topk": "topk", "draft_tokens": "tokens"}
    speculation = Speculation(**{name: options.pop(option) for option, name in names.items()})
    plan = _plan(speculation, dry_run, **options)
    _say(plan, speculation)
    if dry_run:
        emit(_fields(plan)) if as_json else click.echo(plan.shell())
        return
    signal.signal(signal.SIGTERM, _terminated)
    _run(plan, deadline, verbose, as_json)


def _plan(
    speculation: Speculation, dry_run: bool, *, model: str, device: str, flags: tuple[str, ...], **address: Any
) -> Launch:
    """The launch. A dry run of a model on the hub shows the command for a machine with a GPU: here it could not be loaded."""
    from toolkit.lang.launch import is_hub_name, launch

    if device == "auto" and dry_run and is_hub_name(model):
        click.echo("dry run of a model that is not on this machine: the command for one with a GPU", err=True)
        device = "cuda"
    return launch(model, speculation, device=device, flags=flags, **address)


def _say(plan: Launch, speculation: Speculation) -> None:
    click.echo(f"model: {plan.model}\ndevice: {plan.device}", err=True)
    if speculation.flags():
        click.echo(f"speculation: {speculation.preset}, {speculation.says}: {' '.join(speculation.flags())}", err=True)


def _fields(plan: Launch) -> dict[str, Any]:
    return {"url": plan.url, "model": plan.model, "device": plan.device, "command": list(plan.command), "env": dict(plan.env)}


def _run(plan: Launch, deadline: float, verbose: bool, as_json: bool) -> None:
    from toolkit.lang.serve import run_server

    def show(line: str) -> None:
        click.echo(line, err=True)

    def reached(seconds: float, what: str) -> None:
        click.echo(f"{seconds:7.1f} s  {what}", err=True)

    with run_server(plan, deadline=deadline, progress=reached, watch=show if verbose else None) as server:
        emit({**_fields(plan), "command": list(plan.shown), "pid": server.pid}) if as_json else click.echo(server.url)
        sys.stdout.flush()
        click.echo("Ctrl-C stops it", err=True)
        while True:
            server.wait(LONG)


def _terminated(*_: object) -> NoReturn:
    """SIGTERM ends the command as Ctrl-C does: the server's processes end first."""
    sys.exit(TERMINATED)
