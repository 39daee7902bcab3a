"""Command gate: is a candidate engine as right as its baseline? PASS 0, HOLD 1, INCONCLUSIVE 3."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import click

from toolkit.cli.kinds import TEXT, place
from toolkit.cli.options import MOST_KV_BLOCKS, MOST_THREADS, json_option
from toolkit.cli.output import console, emit
from toolkit.cli.remote import REMOTE_OPTIONS, taken
from toolkit.cli.review import shown
from toolkit.cli.verdict import no_verdict
from toolkit.errors import EngineError, UsageError

_LINE = 600  # characters of a reason that are shown; all of it is in the JSON
CODES = {"PASS": 0, "HOLD": 1, "INCONCLUSIVE": 3}


def _remote(function: Any) -> Any:
    for option in reversed(REMOTE_OPTIONS):
        function = option(function)
    return function


@click.command(short_help="Is a fast engine still right? PASS, HOLD or INCONCLUSIVE.")
@click.option("--baseline", type=TEXT, default="embedded", show_default=True, help="The engine that is right.")
@click.option(
    "--candidate",
    type=TEXT,
    metavar="E",
    help="embedded[:drafter][@name=value,...], a SGLang URL, or http://.../v1 of any OpenAI-compatible server.",
)
@click.option("--quick", is_flag=True, help="Seconds on a tiny model, a minute or two on a real one.  [default]")
@click.option("--full", is_flag=True, help="All canaries and more texts: minutes.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Chooses texts and draws.")
@click.option("--seeds", type=click.IntRange(1, 1000), help="Run with so many seeds from --seed on; every one has to pass.")
@click.option("--html", type=place(folders=False), help="Write the report as one page that loads nothing.")
@click.option("--model", type=TEXT, default="smollm2", show_default=True, help="Of embedded engines.")
@click.option("--threads", type=click.IntRange(1, MOST_THREADS), help="CPU threads of embedded engines.  [default: all cores]")
@click.option("--kv-blocks", type=click.IntRange(1, MOST_KV_BLOCKS), help="KV blocks of each embedded engine.")
@_remote
@click.option(
    "--teeth", is_flag=True, help="Instead: run the gate on every planted fault of the tiny model; HOLD on each is required."
)
@json_option
def gate(
    as_json: bool, baseline: str, candidate: str | None, quick: bool, full: bool, seed: int, seeds: int | None, html: Path | None,
    model: str, threads: int | None, kv_blocks: int | None, teeth: bool, **options: Any,
) -> int:  # fmt: skip
    """Canaries, token equality, tests of sampled frequencies and books, over two engines that differ in one thing.

    A PASS is kept under the user's cache folder: the speed of a pair is printed by `bench speculation` only where there is one.
    """
    if quick and full:
        raise UsageError("--quick and --full exclude each other")
    if teeth:
        return _teeth(as_json, candidate, seeds, not full)
    if candidate is None:
        raise UsageError("--candidate is missing", hint="--candidate embedded:mtp, or a server's URL")
    if html is not None and not html.parent.is_dir():
        raise UsageError(f"--html {html}: there is no folder {html.parent}", hint="make it, or name another file")
    from toolkit.gate.open import open_named
    from toolkit.gate.passes import keep
    from toolkit.gate.report import summary
    from toolkit.gate.run import Tier, run_gate

    own = {
        name: value for name, value in (("model", model), ("threads", threads), ("kv_blocks", kv_blocks)) if value is not None
    }
    remote = taken(options)
    tier: Tier = "full" if full else "quick"
    out, reports = console(), []
    with no_verdict(), contextlib.ExitStack() as stack:
        engines = []
        for name in (baseline, candidate):
            engines.append(open_named(name, embedded=own, remote=remote))
            stack.callback(engines[-1].close)
        for number in range(seed, seed + (seeds or 1)):
            report = run_gate(*engines, tier=tier, seed=number, tell=lambda part: out.print(f"[dim]{part}[/]"))
            reports.append(report)
            out.print(f"seed {number}: {report.verdict}, {report.seconds:.0f} s", markup=False)
            try:
                keep(report)
            except EngineError as error:  # the verdict stands all the same
                out.print(str(error), markup=False)
    worst = max(reports, key=lambda each: (each.verdict != "PASS", each.verdict == "HOLD"))
    if html is not None:
        _write(html, worst)
    _show(out, worst)
    if seeds is not None:
        _show_seeds(out, summary(reports))
    if as_json:
        emit(worst.to_json() | ({} if seeds is None else {"seeds": summary(reports)}))
    return CODES[worst.verdict]


def _write(html: Path, report: Any) -> None:
    from toolkit.gate.page import page

    try:
        html.write_text(page(report), encoding="utf-8")
    except OSError as error:
        raise EngineError(f"--html {html} cannot be written: {error.strerror or error}") from error


def _show(out: Any, report: Any) -> None:
    from toolkit.gate.identity import under_test

    counts: dict[str, int] = {}
    for row in report.canaries:
        counts[row["result"]] = counts.get(row["result"], 0) + 1
    out.print(
        f"{report.verdict}  canaries: {', '.join(f'{count} {name}' for name, count in counts.items()) or 'none'}", markup=False
    )
    differing = under_test(report.identity.get("baseline", {}), report.identity.get("candidate", {}))
    out.print(f"  under test: {shown(', '.join(differing), _LINE) or 'nothing that the engines tell of'}", markup=False)
    for why in report.reasons:
        out.print(f"  - {shown(why, _LINE)}", markup=False)
    for why in report.not_checkable:
        out.print(f"  not checkable: {shown(why, _LINE)}", markup=False)
    for row in report.equivalence.get("sampled", {}).get("settings", ()):
        power = row["power"]["detects_at_0.5"]
        out.print(
            f"  sampled, {row['name']}: corrected p {row['p']:.2g} (alarm {row['alarm']:g}), control {row['control']['p']:.1e}; "
            f"a share of 0.5 that moved by {power} is seen in 9 of 10 runs", markup=False,
        )  # fmt: skip


def _show_seeds(out: Any, told: dict[str, Any]) -> None:
    out.print(f"{told['passed']} of {told['run']} seeds PASS, {told['seconds'] / told['run']:.1f} s each", markup=False)
    for each in told["others"]:
        out.print(f"  - seed {each['seed']}: {each['verdict']}: {shown(each['why'], _LINE)}", markup=False)
    if least := told["least_p"]:
        out.print(
            f"  least corrected p of {told['comparisons']} comparisons: {least['p']:.2g} (seed {least['seed']}, "
            f"{least['setting']}; alarm {least['alarm']:g})", markup=False,
        )  # fmt: skip


def _teeth(as_json: bool, candidate: str | None, seeds: int | None, is_quick: bool) -> int:
    if candidate is not None:
        raise UsageError("--candidate says nothing with --teeth: it is the tiny model with every fault", hint="leave it out")
    from toolkit.gate.teeth import SEEDS, run

    result = run(console=console(), seeds=seeds or SEEDS, is_hasty=is_quick)
    if as_json:
        emit(result)
    return CODES[result["verdict"]]
