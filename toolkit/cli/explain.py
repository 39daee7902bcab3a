"""Command explain: the arithmetic behind what this toolkit does, for numbers of yours. Nothing is measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from toolkit.bench import roofline
from toolkit.cli.options import json_option
from toolkit.cli.output import console, emit
from toolkit.contracts import Json

if TYPE_CHECKING:
    from rich.table import Table

UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@click.group(short_help="The arithmetic behind it, for numbers of yours.")
def explain() -> None:
    """Arithmetic, step by step; nothing is measured."""


@explain.command(short_help="What speculation can give, and where it stops to pay.")
@click.option("--acceptance", type=float, default=0.8, show_default=True, help="Chance that a drafted token is right.")
@click.option(
    "--tokens", type=click.IntRange(1, roofline.MOST_TOKENS), default=4, show_default=True, help="Tokens drafted a pass."
)
@click.option("--params", type=float, default=27e9, show_default=True, help="Weights that a token goes through.")
@click.option("--bytes", "weight_bytes", type=float, default=54e9, show_default=True, help="Bytes of weights a pass reads.")
@click.option("--bandwidth", type=float, default=1.79e12, show_default=True, help="Bytes of memory read a second.")
@click.option("--flops", type=float, default=209e12, show_default=True, help="Floating-point operations a second.")
@click.option("--kv-bytes", type=float, default=0.0, show_default=True, help="Bytes of KV a pass reads for each sequence.")
@click.option("--draft-params", type=float, default=0.0, show_default=True, help="The drafter's weights a token goes through.")
@click.option("--draft-bytes", type=float, default=0.0, show_default=True, help="Bytes of the drafter's weights a token reads.")
@json_option
def speculation(
    acceptance: float,
    tokens: int,
    params: float,
    weight_bytes: float,
    bandwidth: float,
    flops: float,
    kv_bytes: float,
    draft_params: float,
    draft_bytes: float,
    as_json: bool,
) -> None:
    """From acceptance, draft length, model size and bandwidth to tokens a second, by batch size.

    The defaults are a model of 27 billion weights in 16 bits (54 GB) on a GPU that reads 1.79 TB and computes 209 T a second;
    the drafter is free unless --draft-bytes and --draft-params say otherwise.
    """
    found = roofline.explain(
        roofline.Machine(bandwidth, flops),
        roofline.Target(params, weight_bytes, kv_bytes),
        roofline.Draft(acceptance, tokens, draft_params, draft_bytes),
    )
    if as_json:
        emit(found)
        return
    for number, step in enumerate(steps(found), 1):
        click.echo(f"{number}. {step}\n")
    console(stderr=False).print(batches(found))


def steps(found: dict[str, Json]) -> Iterator[str]:
    """The argument in words and numbers."""
    machine, target, draft = found["machine"], found["target"], found["draft"]
    tokens, rows = ("1 drafted token", "one further row is") if draft["tokens"] == 1 else (
        f"{draft['tokens']} drafted tokens", f"the {draft['tokens']} further rows are"
    )  # fmt: skip
    a, k, expected = draft["acceptance"], draft["tokens"], found["expected_tokens_per_pass"]
    alone = found["batches"][0]
    read = target["weight_bytes"] + target["kv_bytes"]
    yield (
        "Plain decoding reads all weights for every token: "
        f"{si(read)}B / {si(machine['bandwidth'])}B/s = {1e3 * read / machine['bandwidth']:.4g} ms a pass,\n"
        f"   at most {machine['bandwidth'] / read:.4g} tokens a second for one sequence, however fast the arithmetic is."
    )
    yield (
        f"One pass verifies {tokens}. With acceptance {a:g} it gives (1 - {a:g}^{k + 1}) / (1 - {a:g}) = "
        f"{expected:.4g} tokens:\n   "
        + " + ".join(f"{a**i:.4g}" for i in range(k + 1))
        + " = its own token and what was right."
        if k and a < 1
        else f"One pass verifies {tokens} and gives {expected:.4g}."
    )
    yield (
        f"While reading takes longer than arithmetic, {rows} free. {si(machine['arithmetic'])} operations a second do\n"
        f"   {found['free_rows']:.4g} rows of 2 x {si(target['parameters'])} in the time of one reading."
    )
    flops = roofline.FLOPS_OF_A_WEIGHT * draft["parameters"]
    cost = k * max(draft["weight_bytes"] / machine["bandwidth"], flops / machine["arithmetic"])
    free = draft["weight_bytes"] == draft["parameters"] == 0
    yield (
        ("The drafter is taken to be free" if free else f"The drafter takes {1e3 * cost:.4g} ms or more")
        + f": one sequence gets {alone['speculative_tok_s']:.4g} tokens a second instead of {alone['plain_tok_s']:.4g}, "
        f"{alone['speedup']:.3g} times as many."
    )
    plain, ours = (found["per_token"][name] for name in ("plain", "speculative"))
    yield (
        "What a token costs: arithmetic rises "
        f"from {si(plain['target_flops'])} to {si(ours['target_flops'] + ours['draft_flops'])} operations "
        f"({ratio(ours, plain, 'target_flops', 'draft_flops')}x), bytes of weights fall\n"
        f"   from {si(plain['weight_bytes'])} to {si(ours['weight_bytes'] + ours['draft_weight_bytes'])} "
        f"({ratio(ours, plain, 'weight_bytes', 'draft_weight_bytes')}x)."
    )
    end = found["break_even_batch"]
    yield (
        f"A batch of B has B x {k + 1} rows. Once they are no longer free, {k + 1} rows cost {k + 1} times one and give "
        f"{expected:.4g} tokens:\n   "
        + (f"from {end} sequences on it does not pay." if end else f"here it still pays at {roofline.MOST_BATCH} sequences.")
    )


def batches(found: dict[str, Json]) -> Table:
    from rich.table import Table

    table = Table(title="tokens a second, all sequences together", title_justify="left")
    for name in ("batch", "plain", "speculative", "times", "bound by"):
        table.add_column(name, justify="right")
    for row in found["batches"]:
        rates = (f"{row['plain_tok_s']:,.1f}", f"{row['speculative_tok_s']:,.1f}", f"{row['speedup']:.2f}")
        table.add_row(str(row["batch"]), *rates, row["bound"], style="" if row["speedup"] > 1 else "red")
    return table


def si(value: float) -> str:
    """A number with a unit prefix: 54e9 -> "54 G"."""
    size, prefix = next(((size, prefix) for size, prefix in UNITS if value >= size), (1.0, ""))
    return f"{value / size:.4g} {prefix}"


def ratio(ours: dict[str, float], plain: dict[str, float], *names: str) -> str:
    return f"{sum(ours[name] for name in names) / sum(plain[name] for name in names):.3g}"
