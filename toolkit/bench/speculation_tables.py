"""Speculation tables: a report of `bench speculation` for people - the ceiling first, a table a kind of prompts, one of costs.

In: the report.   Out: text on the console; Markdown as well where that is no terminal.
Knows nothing about: how figures came about. Invariants: what was withheld is shown as withheld.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from toolkit.bench import tables
from toolkit.bench.speculation_rows import PLAIN
from toolkit.engine.card import line

HEAD = ("arm", "tokens/pass", "expected", "accepted", "by position", "same ids", "tok/s", "x plain", "x llama.cpp", "drafting")
COSTS = (
    "arm",
    "in",
    "asked",
    "out",
    "first token s",
    "whole s",
    "s a token, half / 95 %",
    "weights MB",
    "KV MB",
    "MFLOP",
    "repeats",
)


def show_ceiling(console: Console, machine: Mapping[str, float] | None) -> None:
    """Before anything is measured: what reading the weights alone allows."""
    if machine is not None:
        console.print(
            f"ceiling: {machine['read_bytes_s'] / 1e9:.1f} GB/s read, {machine['weight_bytes'] / 1e6:.1f} MB of weights a pass: at most "
            f"{machine['plain_tok_s']:.1f} tokens a second without a draft; with one, that times its tokens/pass", highlight=False,
        )  # fmt: skip


def show(console: Console, result: dict[str, Any]) -> None:
    tables.verdict(console, result)
    body = {kind: [_cells(name, each) for name, each in row.items()] for kind, row in result["kinds"].items()}
    costs = [_costs(each) for each in result["arms"]]
    for kind, lines in body.items():
        title = f"{kind}: {result['prompts'][kind]} prompts, temperature {result['settings']['temperature']:g}"
        tables.show(console, title, HEAD, lines)
    tables.show(console, "all prompts: lengths, times and work of a token", COSTS, costs)
    for note in result["notes"]:
        console.print(f"note: {note}", markup=False)
    if "plain_reached" in (machine := result["ceiling"].get("machine") or {}):
        console.print(f"plain decoding reaches {machine['plain_reached']:.0%} of its ceiling", highlight=False)
    for name, value in result["ratios"].items():
        if isinstance(value, float):
            low, high = result["ratios"][f"{name}_quartiles"]
            console.print(f"{name}: {value:.2f} ({low:.2f} to {high:.2f})", highlight=False)
    console.print(f"[dim]{line(result['card'])}[/]")
    for kind, lines in body.items():
        tables.for_pages(console, f"bench-speculation-{kind}", HEAD, lines)
    tables.for_pages(console, "bench-speculation-costs", COSTS, costs)


def _cells(name: str, each: Mapping[str, Any]) -> tuple[str, ...]:
    def ratio(label: str) -> str:
        return "{1:.2f} ({0:.2f}-{2:.2f})".format(*each[label]) if label in each else "-"

    drafts = sum(each["proposed_by_position"]) > 0
    return (
        name,
        f"{each['tokens_per_pass']:.2f}",
        f"{each['expected_tokens_per_pass']:.2f}" if drafts else "-",
        f"{100 * each['accepted_of_proposed']:.0f} %" if drafts else "-",
        " ".join(f"{share:.2f}" for share in each["acceptance_by_position"][:8]) or "-",
        f"{each['identical']}/{each['compared']}" if each["compared"] else "-",
        f"{each['decode_tok_s']:.1f}" if "decode_tok_s" in each else "withheld",
        ratio("vs_plain"),
        ratio("vs_llamacpp"),
        f"{100 * each['draft_share_of_time']:.1f} %" if "draft_share_of_time" in each and drafts else "-",
    )


def _costs(each: Mapping[str, Any]) -> tuple[str, ...]:
    work = (each["per_token"] or {}).get("plain" if each["name"] == PLAIN else "speculative", {})

    def mega(*names: str) -> str:
        return f"{sum(work[name] for name in names) / 1e6:.1f}" if work else "-"

    return (
        each["name"],
        f"{each['input_tokens']:.0f}",
        f"{each['requested_tokens'] or '-'}",
        f"{each['output_tokens']:.0f}",
        f"{each['ttft_s']:.3f}" if "ttft_s" in each else "withheld",
        f"{each['e2e_s']:.3f}" if "e2e_s" in each else "withheld",
        "{median:.4f} / {p95:.4f}".format(**each["wait_s"]) if each.get("wait_s") else "-",
        mega("weight_bytes", "draft_weight_bytes"),
        mega("kv_bytes"),
        mega("target_flops", "draft_flops"),
        f"{each['repetition']:.0%}",
    )
