"""Commands bench and demo: what the toolkit is worth, measured here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from toolkit.cli import cost, drill, equality, kv, speed
from toolkit.cli.kinds import TEXT, place
from toolkit.cli.options import engine_options, json_option, opened
from toolkit.cli.output import console, emit
from toolkit.cli.verdict import no_verdict, verdict

NEVER = ("invalid_accepted_after_validation", "invalid_accepted_by_strict_mask")


@click.command(short_help="12 real requests, greedy next to beam 4.")
@click.option("--limit", type=click.IntRange(1), default=12, show_default=True, help="Requests.")
@engine_options
@json_option
def demo(limit: int, as_json: bool, **options: Any) -> None:
    """User requests of the Berkeley function-calling set, each under its own function schema: both answers, who is right, alternatives."""
    from toolkit.bench.demo import run

    with opened(options) as engine:
        result = run(engine, limit=limit, console=console())
    if as_json:
        emit(result)


class _Bench(click.Group):
    """`bench --peers` is `bench peers`: scripts outside the project call it so."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(context, ["peers", *args[1:]] if args[:1] == ["--peers"] else args)


@click.group(cls=_Bench, short_help="Quality and cost; no speed without a passed check.")
def bench() -> None:
    """Measurements. Seconds are withheld, and the exit code is 1, unless what was timed was right."""


for _command in (speed.plain, speed.speculation, speed.peers, equality.equality, drill.drill, kv.kv, cost.prefix, cost.cost):
    bench.add_command(_command)


@bench.command(short_help="Greedy against beam search on records with known answers.")
@click.option("--task", type=click.Choice(["bfcl", "snips"]), default="bfcl", show_default=True)
@click.option(
    "--data",
    type=place(exists=True),
    help="File (bfcl) or folder (snips).  [default: the bfcl-eval package]",
)
@click.option("--limit", type=click.IntRange(1), help="Records.  [default: all]")
@click.option(
    "--setting",
    "settings",
    type=TEXT,
    multiple=True,
    help="greedy or beam<width>:<alpha>; repeatable.  [default: greedy, beam 4 and 8, alpha 0 and 1]",
)
@click.option("--batch", type=click.IntRange(1), default=8, show_default=True, help="Records decoded together.")
@click.option("--style", type=click.Choice(["raw", "chat"]), help="Prompt style.  [default: the task's own]")
@click.option("--out", type=place(), default=Path("out/bench"), show_default=True, help="Folder for the rows.")
@click.option("--resume", is_flag=True, help="Take over the rows of an interrupted run.")
@engine_options
@json_option
def quality(
    as_json: bool,
    task: str,
    data: Path | None,
    limit: int | None,
    settings: tuple[str, ...],
    batch: int,
    style: Any,
    out: Path,
    resume: bool,
    **options: Any,
) -> int:
    """Exact match, n-best, log-probability and seconds a record, all settings on the same records."""
    from toolkit.bench import arms
    from toolkit.bench.extraction import run

    with no_verdict(), opened(options) as engine:
        result = run(
            engine, task=task, data=data, limit=limit, settings=settings or arms.DEFAULT, batch=batch, console=console(),
            out=out, resume=resume, style=style,
        )  # fmt: skip
    return verdict(result, as_json)


@bench.command(short_help="A SGLang server: greedy, its own beams, our constrained beams.")
@click.option("--data", type=place(exists=True), help="BFCL records.  [default: the bfcl-eval package]")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Records.")
@click.option("--width", type=click.IntRange(2), default=4, show_default=True)
@click.option("--alpha", type=float, default=1.0, show_default=True)
@click.option("--max-tokens", type=click.IntRange(1), default=96, show_default=True)
@engine_options
@json_option
def server(as_json: bool, data: Path | None, limit: int, width: int, alpha: float, max_tokens: int, **options: Any) -> int:
    """Seconds an output token and validity on --engine URL, after checking our beams against the embedded engine's in float32."""
    from toolkit.bench.server import run

    with no_verdict(), opened(options) as engine:
        result = run(engine, data=data, limit=limit, width=width, alpha=alpha, max_tokens=max_tokens, console=console())
    return verdict(result, as_json)


@bench.command(short_help="JSON Schema conformance of mask and validator.")
@click.option(
    "--data", required=True, type=place(exists=True, files=False),
    help="Folder with json_schema_test_suite/ and jsonschemabench.jsonl.",
)  # fmt: skip
@json_option
def schemas(data: Path, as_json: bool) -> int:
    """Count what is compiled, partial, refused, and wrongly accepted or refused; exit code 1 if anything invalid passed the validator."""
    from toolkit.bench.schemas import run

    with no_verdict():
        result = run(data)
    if as_json:
        emit(result)
    return int(any(counts[name] for counts in result.values() for name in NEVER))


@bench.command(short_help="What int8 and int4 cost in quality, against float32.")
@click.option("--model", default="smollm2", type=TEXT, show_default=True)
@click.option(
    "--text", type=place(exists=True, folders=False),
    help="UTF-8 file to score.  [default: docstrings of the standard library]",
)  # fmt: skip
@json_option
def formats(model: str, text: Path | None, as_json: bool) -> int:
    """Perplexity on text and chat, top-1 agreement and KL divergence; exit code 1 where int8 costs more than 1 % of perplexity."""
    from toolkit.bench.formats import run

    with no_verdict():
        result = run(model, text=text, console=console())
    return verdict(result, as_json)


@bench.command(short_help="Seconds to the first token of a new process, and its peak memory.")
@click.option("--model", default="smollm2", type=TEXT, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Processes a format.")
@json_option
def start(model: str, rounds: int, as_json: bool) -> int:
    """`toolkit generate Hi` as whole processes, int8 and float32 in turn; exit code 1 where one format wrote different texts."""
    from toolkit.bench.start import run

    with no_verdict():
        result = run(model=model, rounds=rounds, console=console())
    return verdict(result, as_json)


@bench.command(short_help="Tool-call parsers against SGLang's, on random partitions.")
@click.option("--partitions", type=click.IntRange(1), default=300, show_default=True, help="A format and size of pieces.")
@json_option
def tools(partitions: int, as_json: bool) -> int:
    """Two calls a format, cut at random: what each parser makes of them; exit code 1 if one of this toolkit's is wrong."""
    from toolkit.bench.tools import run

    return verdict(run(partitions=partitions, console=console()), as_json)
