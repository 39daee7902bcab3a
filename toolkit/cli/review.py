"""Commands review and stats: the output of a job as a page to go through, and as distributions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from toolkit.cli.kinds import place
from toolkit.cli.options import json_option
from toolkit.cli.output import console, emit
from toolkit.contracts import Json

BLOCKS = "▁▂▃▄▅▆▇█"
MOST_TEXT = 1_000_000


@click.command(short_help="The output of a job as one HTML page.")
@click.argument("out", type=place())
@click.option("--page", type=place(folders=False), help="The file to write.  [default: OUT.html]")
@click.option("--input", "source", type=place(exists=True), help="The job's input, where it is no longer where it was.")
@click.option(
    "--only", type=click.Choice(["all", "review", "failed"]), default="all", show_default=True,
    help="review leaves out what needs no look, failed all but failures.",
)  # fmt: skip
@click.option("--limit", type=click.IntRange(1), default=20_000, show_default=True, help="The most records on the page.")
@click.option(
    "--max-text", type=click.IntRange(0, MOST_TEXT), default=20_000, show_default=True, help="Characters of each text."
)
@json_option
def review(out: Path, page: Path | None, source: Path | None, only: Any, limit: int, max_text: int, as_json: bool) -> int:
    """Write one self-contained page: each text of the job in OUT with what was found marked in it, values with confidences,
    alternatives, filters, search and keys (? lists them). It loads nothing and sends nothing.
    """
    from toolkit.jobs.review import write_review

    written = page or out.with_name(out.name + ".html")
    found = write_review(out, written, place=source, only=only, limit=limit, max_text=max_text)
    click.echo(f"{found['shown']} of {found['records']} records in {found['page']}", err=True)
    if found["source"]:
        click.echo(f"note: without texts: {found['source']}", err=True)
    if as_json:
        emit(found)
    else:
        click.echo(found["page"])
    return 0


@click.command(short_help="Distributions over the output of a job.")
@click.argument("out", type=place())
@json_option
def stats(out: Path, as_json: bool) -> int:
    """Count over all lines of the job in OUT: fields present and missing, their values, lengths, confidences, what is in the text;
    errors by kind; seconds and tokens.
    """
    from toolkit.jobs.review_lines import job_lines
    from toolkit.jobs.stats import stats_of

    found = stats_of(job_lines(out))
    if as_json:
        emit(found)
    else:
        _show(found)
    return 0


def _show(found: dict[str, Json]) -> None:
    out = console(stderr=False)
    counts = f"{found['records']:,} records: {found['valid']:,} valid, {found['failed']:,} failed"
    out.print(f"{counts}, {found['needs_review']:,} need review", highlight=False)
    for each in _tables(found):
        if each.row_count:
            out.print(each)


def _tables(found: dict[str, Json]) -> Iterator[Any]:
    from rich.markup import escape

    fields = _table(
        "fields", "field", "present", "missing", "types", "distinct", "in the text", "confidence 0 .. 1", "p50", "least"
    )
    values = _table("values", "field", "most frequent", "length or amount: min .. p50 .. max")
    for path, each in found["fields"].items():
        sure, name = each["confidence"] or {}, escape(path or "(whole)")
        grounded = each["grounded"]
        seen = f"{grounded.get('found', 0)} of {sum(grounded.values())}" if grounded else ""
        many = "500+" if each["distinct"] is None else str(each["distinct"])
        fields.add_row(
            name, str(each["present"]), str(each["missing"]), ", ".join(each["types"]), many, seen,
            bars(sure.get("histogram", [])), *(f"{sure[key]:.2f}" if key in sure else "" for key in ("p50", "min")),
        )  # fmt: skip
        top = ", ".join(f"{escape(shown(value))} {count}" for value, count in list(each["values"].items())[:5])
        values.add_row(name, top, _range(each["length"]) or _range(each["amount"]))
    yield fields
    yield values
    for title, rows in (("needs review", found["review_reasons"]), ("errors", found["errors"]["reasons"])):
        table = _table(title, "why", "records")
        for why, count in rows.items():
            table.add_row(escape(shown(why, 110)), str(count))
        yield table
    costs = _table("a record", "", "min", "p50", "mean", "p90", "p99", "max")
    for name, spread in (("seconds", found["seconds"]), ("output tokens", found["output_tokens"])):
        if spread:
            costs.add_row(name, *(f"{spread[key]:.3g}" for key in ("min", "p50", "mean", "p90", "p99", "max")))
    yield costs


def _table(title: str, *columns: str) -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for number, name in enumerate(columns):
        numeric = name in ("present", "missing", "distinct", "p50", "least", "records") or (title == "a record" and number > 0)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold", no_wrap=name == "confidence 0 .. 1")
    return table


def bars(counts: list[int]) -> str:
    """A histogram in one line: a bar a bin, the fullest as high as it gets, a blank for none."""
    most = max(counts, default=0)
    return "".join(BLOCKS[-(-count * len(BLOCKS) // most) - 1] if count else " " for count in counts)


def _range(spread: dict[str, float] | None) -> str:
    return f"{spread['min']:.4g} .. {spread['p50']:.4g} .. {spread['max']:.4g}" if spread else ""


def shown(text: str, most: int = 40) -> str:
    """One line without anything that a terminal would act on."""
    plain = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return plain if len(plain) <= most else plain[: most - 1] + "…"
