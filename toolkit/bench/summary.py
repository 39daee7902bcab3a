"""Summary: rows of outcomes to the figures of a report, and the verdict that says whether seconds may be shown.

In: outcomes by (item id, setting).   Out: a JSON-ready dict (`verdict`, `reasons`, `arms`, `pairs`, `ratios`, `ceiling`).
Knows nothing about: engines, files, how a table looks.
Units: shares 0..1, natural logarithms, seconds, tokens and passes a record (means).
Ratios: median seconds of a setting over median seconds of greedy; 1 is free. Their floor is the ratio of passes (a pass
costs the same however many rows it has), their roof the ratio of rows (a pass costs as much as its rows).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from toolkit.bench.arms import GREEDY, TWIN, Outcome, Setting
from toolkit.bench.stats import f1, median, quantile, sign_test, wilson
from toolkit.bench.task import Item, Task

Rows = Mapping[tuple[str, str], Outcome]


def summarise(task: Task, items: Sequence[Item], settings: Sequence[Setting], rows: Rows) -> dict[str, Any]:
    """Figures over `items` for every setting; `rows` must also hold the width-1 twin."""
    columns = {setting.name: [rows[item.id, setting.name] for item in items] for setting in settings}
    twin = [rows[item.id, TWIN.name] for item in items]
    reasons = complaints(columns, twin)
    greedy = columns[GREEDY.name]
    found: dict[str, Any] = {
        "bench": "extraction",
        "task": task.name,
        "verdict": "HOLD" if reasons else "PASS",
        "reasons": reasons,
        "records": len(items),
        "skipped": dict(task.skipped),
        "bounds": task.bounds,
        "max_tokens": task.max_tokens,
        "arms": [arm(setting, columns[setting.name]) for setting in settings],
        "pairs": {name: pairs(greedy, column) for name, column in columns.items() if name != GREEDY.name},
        "ratios": {},
        "ceiling": {},
    }
    if reasons:
        for row in found["arms"]:
            for name in ("seconds", "e2e_s", "ttft_s", "decode_tok_s"):
                row.pop(name)
        return found
    base = found["arms"][0]
    for row in found["arms"][1:]:
        found["ratios"][row["name"]] = ratio(row["seconds"]["median"], base["seconds"]["median"])
        found["ceiling"][row["name"]] = {
            "passes": ratio(row["passes"], base["passes"]),
            "rows": ratio(row["rows"], base["rows"]),
        }
    return found


def complaints(columns: Mapping[str, Sequence[Outcome]], twin: Sequence[Outcome]) -> list[str]:
    """Why seconds may not be shown; empty when they may."""
    found = []
    for name, column in columns.items():
        if bad := [row for row in column if row.delivered and not row.checked]:
            found.append(f"{name}: {len(bad)} delivered values are not valid, first {bad[0].id}: {bad[0].error}")
    if other := [row.id for row, greedy in zip(twin, columns[GREEDY.name], strict=True) if not same_answer(row, greedy)]:
        found.append(f"a beam of width 1 differs from constrained greedy on {len(other)} records, first {other[0]}")
    return found


def same_answer(beam: Outcome, greedy: Outcome) -> bool:
    """Equal tokens; where the beam has no hypothesis to show (it was cut off), equal text."""
    if beam.token_ids:
        return beam.token_ids == greedy.token_ids
    return not greedy.checked and beam.text == greedy.text


def arm(setting: Setting, column: Sequence[Outcome]) -> dict[str, Any]:
    n = len(column)
    exact, top = sum(row.exact for row in column), sum(row.top_exact for row in column)
    totals = [sum(getattr(row, name) for row in column) for name in ("right", "wrong", "missed")]
    precision, recall, score = f1(*totals)
    seconds = [row.seconds for row in column]
    logprobs = [row.sum_logprob for row in column if row.sum_logprob is not None]
    return {
        "name": setting.name,
        "exact": {"n": exact, "share": exact / n, "wilson95": wilson(exact, n)},
        "top": {"n": top, "share": top / n, "wilson95": wilson(top, n)},
        "f1": {"precision": precision, "recall": recall, "f1": score},
        "mean_sum_logprob": fmean(logprobs) if logprobs else None,
        "not_delivered": sum(not row.delivered for row in column),
        "tokens": fmean(row.tokens for row in column),
        "passes": fmean(row.passes for row in column),
        "rows": fmean(row.rows for row in column),
        "cached_tokens": fmean(row.cached for row in column),
        "tokens_per_pass": sum(row.tokens for row in column) / max(1, sum(row.passes for row in column)),
        "seconds": {
            "median": median(seconds),
            "q1": quantile(seconds, 0.25),
            "q3": quantile(seconds, 0.75),
            "mean": fmean(seconds),
        },
        "e2e_s": median(seconds),
        "ttft_s": median([row.ttft_s for row in column]),
        "decode_tok_s": median([row.decode_tok_s for row in column]),
    }


def pairs(greedy: Sequence[Outcome], other: Sequence[Outcome]) -> dict[str, Any]:
    """Record by record: who is right where the other is not, and whose answer the model itself finds likelier."""
    both = list(zip(greedy, other, strict=True))
    better = sum(o.exact and not g.exact for g, o in both)
    worse = sum(g.exact and not o.exact for g, o in both)
    gains = [o.sum_logprob - g.sum_logprob for g, o in both if o.sum_logprob is not None and g.sum_logprob is not None]
    higher, lower = sum(gain > 1e-4 for gain in gains), sum(gain < -1e-4 for gain in gains)
    return {
        "only_this_right": better,
        "only_greedy_right": worse,
        "sign_test_p": sign_test(better, worse),
        "logprob": {"higher": higher, "equal": len(gains) - higher - lower, "lower": lower},
    }


def ratio(value: float, base: float) -> float | None:
    return value / base if base else None
