"""Peers report: per-record measurements of two engines to a verdict, ratios and tables.

In: one dict a record (seconds by arm, checks, scores).   Out: a JSON-ready dict; text on the console.
Knows nothing about: engines.
Units: a ratio A_vs_B is seconds of A over seconds of B, taken per record; the figure is the median over records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from toolkit.bench import tables
from toolkit.bench.stats import median, quantile
from toolkit.engine.card import line


def summarise(records: Sequence[dict[str, Any]], width: int, alpha: float, *, tie: float = 0.0) -> dict[str, Any]:
    """Verdict first; ratios only after a PASS. Greedy texts may part where the two tokens are at most `tie` nats apart."""
    reasons = []
    if other := [row["id"] for row in records if not row["greedy_equal"] and (tie == 0 or row["greedy_gap"] > tie)]:
        reasons.append(f"greedy tokens differ from transformers on {len(other)} of {len(records)} records, first {other[0]}")
    if invalid := [row["id"] for row in records if not row["valid"]]:
        reasons.append(f"the engine's value is not valid on {len(invalid)} records, first {invalid[0]}")
    gaps = [row["beam_score"] - row["transformers_beam_score"] for row in records]
    result: dict[str, Any] = {
        "bench": "peers", "verdict": "HOLD" if reasons else "PASS", "reasons": reasons, "records": len(records),
        "near_ties": sum(not row["greedy_equal"] for row in records) - len(other), "tie_nats": tie,
        "width": width, "alpha": alpha, "arms": [], "ratios": {}, "quartiles": {}, "ceiling": {},
        "definition": "A_vs_B: seconds of A / seconds of B per record, median over records",
        "beam_score": {
            "higher": sum(gap > 1e-4 for gap in gaps), "equal": sum(abs(gap) <= 1e-4 for gap in gaps),
            "lower": sum(gap < -1e-4 for gap in gaps), "of": "the engine's against transformers', log-probability a token",
        },
        "cached_share": sum(row["cached_tokens"] for row in records) / sum(row["input_tokens"] for row in records),
        "per_record": [{name: value for name, value in row.items() if not reasons or name != "seconds"} for row in records],
    }  # fmt: skip
    if reasons:
        return result
    for name in records[0]["seconds"]:
        times = [row["seconds"][name] for row in records]
        result["arms"].append({"name": name, "e2e_s": median(times), "q1": quantile(times, 0.25), "q3": quantile(times, 0.75)})
    wanted = {
        f"beam{width}_vs_greedy": ("beam", "greedy"),
        f"beam{width}_vs_transformers": ("beam", "transformers_beam"),
        "greedy_vs_transformers": ("greedy", "transformers_greedy"),
        f"transformers_beam{width}_vs_greedy": ("transformers_beam", "transformers_greedy"),
    }
    for name, (one, two) in wanted.items():
        shares = [row["seconds"][one] / row["seconds"][two] for row in records]
        result["ratios"][name] = median(shares)
        result["quartiles"][name] = (quantile(shares, 0.25), quantile(shares, 0.75))
    result["ceiling"][f"beam{width}_vs_greedy"] = median(
        [row["passes"]["beam"] / max(1, row["passes"]["greedy"]) for row in records]
    )
    return result


def show(console: Console, result: dict[str, Any]) -> None:
    tables.verdict(console, result)
    if result["verdict"] != "PASS":
        return
    names = [arm["name"] for arm in result["arms"]]
    each = [(row["id"], *(f"{row['seconds'][name]:.2f}" for name in names)) for row in result["per_record"]]
    tables.show(console, "seconds a record", ("record", *names), each)
    head = ("ratio of seconds", "median", "quartiles")
    rows = [
        (name, f"{value:.2f}", "{:.2f}-{:.2f}".format(*result["quartiles"][name])) for name, value in result["ratios"].items()
    ]
    tables.show(console, f"{result['records']} records, alpha {result['alpha']}", head, rows)
    if result["near_ties"]:
        console.print(f"greedy texts part at a near-tie (<= {result['tie_nats']} nats) on {result['near_ties']} records")
    score = result["beam_score"]
    console.print(
        f"beam answers: the engine's likelier on {score['higher']}, equal on {score['equal']}, less likely on {score['lower']}; "
        f"{100 * result['cached_share']:.0f} % of the engine's prompt tokens came from its prefix cache, transformers computes all"
    )
    console.print(f"[dim]{line(result['card'])}[/]")
    console.print(tables.markdown("bench-peers", head, rows), markup=False, highlight=False, soft_wrap=True)
