"""Speculation report: timed runs by kind and arm to a verdict, figures and ratios.

In: rows of samples by kind.   Out: a JSON-ready dict.
Knows nothing about: engines, how it is shown (speculation_tables.py).
Units: `vs_plain`, `vs_llamacpp` are tokens a second over the other's, on the same prompt in the same turn: more is faster; first
quartile, median, third quartile over prompts. Their ceiling is `tokens_per_pass`: passes that cost no more with a draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.bench import accounting
from toolkit.bench.speculation_rows import PEER, PLAIN, Row, Sample, arms, complaints, spread
from toolkit.bench.stats import median, quantile

LOOPING = 0.5  # share of a text that stood in it before
CHAT, COPYING = "chat", "copying"  # kinds whose best arm is named in the ratios


def summarise(
    rows: Mapping[str, Sequence[Row]],
    names: Sequence[str],
    *,
    tokens: int,
    temperature: float,
    rounds: int,
    tie_nats: float,
    models: Mapping[str, accounting.Model | None] | None = None,
    machine: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Verdict first; seconds and ratios only after a PASS. `models`: what runs in each arm, for the work of a token; `machine`: the
    ceiling of plain decoding (bandwidth.py).
    """
    models = models or {}
    reasons = complaints(rows, tie_nats)
    kinds = {
        kind: {name: figures(kept, name, timed=not reasons, model=models.get(name)) for name in arms(kept, names)}
        for kind, kept in rows.items()
        if kept
    }
    every = [row for kept in rows.values() for row in kept]
    found = [{"name": name, **figures(every, name, timed=not reasons, model=models.get(name))} for name in arms(every, names)]
    return {
        "bench": "speculation",
        "verdict": "HOLD" if reasons else "PASS",
        "reasons": reasons,
        "settings": {"tokens": tokens, "temperature": temperature, "rounds": rounds, "tie_nats": tie_nats, "batch": 1},
        "prompts": {kind: len(kept) // rounds for kind, kept in rows.items()},
        "kinds": kinds,
        "arms": found,
        "ratios": {} if reasons else ratios(kinds, names),
        "ceiling": {kind: {name: each[name]["tokens_per_pass"] for name in names} for kind, each in kinds.items()}
        | {"machine": reached(machine, found)},
        "notes": sorted({f"{name}: {note}" for row in every for name, each in row.items() for note in each.notes})
        + loops(rows),
        "definition": "x_vs_y: tokens a second of x over y's, per prompt, median over prompts; the time is that after the first token",
    }


def reached(machine: Mapping[str, float] | None, found: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """The machine's ceiling of plain decoding, and which share of it was reached where speed may be told."""
    plain = next((each for each in found if each["name"] == PLAIN), {})
    if machine is None or "decode_tok_s" not in plain:
        return None if machine is None else dict(machine)
    return {**machine, "plain_reached": plain["decode_tok_s"] / machine["plain_tok_s"]}


def loops(rows: Mapping[str, Sequence[Row]]) -> list[str]:
    """Kinds of prompts whose timed texts mostly repeat themselves: their speed says nothing about other texts."""
    shares = {
        kind: [each.repetition for row in kept for name, each in row.items() if name != PEER] for kind, kept in rows.items()
    }
    return [
        f"{kind}: {median(values):.0%} of the median text repeats itself"
        for kind, values in shares.items()
        if values and median(values) >= LOOPING
    ]


def figures(rows: Sequence[Row], name: str, *, timed: bool, model: accounting.Model | None = None) -> dict[str, Any]:
    """What one arm did over some prompts."""
    samples = [row[name] for row in rows if name in row]
    usage = accounting.total(each.usage for each in samples)
    found: dict[str, Any] = {
        **accounting.summary(usage),
        "accepted_by_position": list(usage.accepted_by_position),
        "proposed_by_position": list(usage.proposed_by_position),
        "texts": len(samples),
        "identical": sum(each.same is True for each in samples),
        "compared": sum(each.same is not None for each in samples),
        "input_tokens": median([each.usage.input_tokens for each in samples]),
        "requested_tokens": max(each.asked for each in samples),
        "output_tokens": median([each.tokens for each in samples]),
        "repetition": median([each.repetition for each in samples]),
        "per_token": work(samples, model),
    }
    if not timed:
        return found
    found |= {
        "decode_tok_s": median([each.tok_s for each in samples]),
        "ttft_s": median([each.ttft_s for each in samples]),
        "e2e_s": median([each.e2e_s for each in samples]),
        "wait_s": spread([wait for each in samples for wait in each.waits]),
        "draft_share_of_time": usage.draft_s / max(1e-9, sum(each.decode_s for each in samples)),
    }
    for label, other in (("vs_plain", PLAIN), ("vs_llamacpp", PEER)):
        shares = [row[name].tok_s / row[other].tok_s for row in rows if other in row and _both(row[name], row[other])]
        if shares and name != other:
            found[label] = [quantile(shares, q) for q in (0.25, 0.5, 0.75)]
    return found


def work(samples: Sequence[Sample], model: accounting.Model | None) -> dict[str, dict[str, float]] | None:
    """FLOPs and bytes of one committed token, plain and as it was decoded; None where the model is not known."""
    told = [each for each in samples if each.usage.steps and each.usage.output_tokens]
    if model is None or not told:
        return None
    tokens = sum(each.usage.output_tokens for each in told)
    found: dict[str, dict[str, float]] = {}
    for label, how in (("plain", accounting.plain_work), ("speculative", accounting.speculative_work)):
        rows = [(each.usage.output_tokens, how(each.usage, model)) for each in told]
        found[label] = {name: sum(count * row[name] for count, row in rows) / tokens for name in rows[0][1]}
    return found


def ratios(kinds: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """Of the arm that is fastest on chat, and of the one that is on copying; with the quartiles and the arms' names."""
    found: dict[str, Any] = {}
    for kind, label in ((CHAT, "speculative"), (COPYING, "copy")):
        timed = {name: kinds[kind][name] for name in names if kind in kinds and "vs_plain" in kinds[kind][name]}
        if not timed:
            continue
        best = max(timed, key=lambda name: timed[name]["vs_plain"][1])
        found[f"{label}_arm"] = best
        for other in ("vs_plain", "vs_llamacpp"):
            if other in timed[best]:
                found[f"{label}_{other}"] = timed[best][other][1]
                found[f"{label}_{other}_quartiles"] = (timed[best][other][0], timed[best][other][2])
    return found


def _both(one: Sample, two: Sample) -> bool:
    return one.tok_s > 0 and two.tok_s > 0
