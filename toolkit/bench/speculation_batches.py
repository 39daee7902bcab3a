"""Speculation in batches: several requests together with a drafter that chooses its own draft, against the same without it.

In: an engine with a drafter, prompts.   Out: JSON (a row a batch size, verdict), a table.
Knows nothing about: drafters.
Invariants: no ratio is given where an int8 engine gave other tokens with the drafter. A row says whether the ratio, tokens a
second over those of plain decoding, is at least LEAST.
Method: per size and round both once, in an order that alternates; the first round warms up and is not counted. Tokens and seconds
count from the moment at which every request of the batch has its first token.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import track

from toolkit.bench import tables
from toolkit.bench.accounting import total
from toolkit.bench.stats import quantile
from toolkit.contracts import Completion, Done, Engine, Failed, Request, SamplingParams
from toolkit.errors import UsageError

SIZES = (1, 2, 4, 8, 16)
LEAST = 0.97  # of plain speed, at any batch size
HEAD = ("batch", "x plain", "quartiles", "draft tokens a token", "tokens/pass", f">= {LEAST}")


def run(
    engine: Engine, texts: Sequence[str], *, sizes: Sequence[int] = SIZES, tokens: int = 64, rounds: int = 3,
    temperature: float = 0.0, console: Console | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Measure each size `rounds` times over the texts in turn, `tokens` tokens each, end tokens not obeyed."""
    console = console or Console(stderr=True)
    chats = [engine.tokenizer.chat([{"role": "user", "content": text}]) for text in texts]
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=temperature, seed=1 if temperature > 0 else None)
    rows, reasons = [], []
    for size in track(sizes, "batches", console=console, transient=True):
        row, unequal = _size(engine, chats, size, sampling, rounds)
        rows.append(row)
        exact = temperature == 0.0 and getattr(engine, "format", "").startswith(("int8", "int4"))
        if unequal and exact:
            reasons.append(f"{unequal} texts differ with and without speculation at batch {size}")
    verdict = "HOLD" if reasons else "PASS"
    kept = [{k: v for k, v in row.items() if not reasons or k not in ("vs_plain", "at_least")} for row in rows]
    result = {
        "verdict": verdict,
        "reasons": reasons,
        "temperature": temperature,
        "least": LEAST,
        "batches": kept,
        "stops_paying_at": _stops(kept),
    }
    _show(console, result)
    return result


def _stops(rows: Sequence[dict[str, Any]]) -> int | None:
    """The smallest batch at which speculation is no faster than plain decoding; None where it always is, or nothing is told."""
    return next((row["batch"] for row in rows if "vs_plain" in row and row["vs_plain"][1] <= 1.0), None)


def _size(
    engine: Engine, chats: Sequence[list[int]], size: int, sampling: SamplingParams, rounds: int
) -> tuple[dict[str, Any], int]:
    shares, unequal, usages = [], 0, []
    for turn in range(rounds + 1):
        prompts = [chats[(turn * size + i) % len(chats)] for i in range(size)]
        order = (False, True) if turn % 2 else (True, False)
        found = {speculate: _together(engine, prompts, sampling, speculate) for speculate in order}
        if turn == 0:
            continue
        (plain, plain_rate), (drafted, drafted_rate) = found[False], found[True]
        unequal += sum(a.token_ids != b.token_ids for a, b in zip(plain, drafted, strict=True))
        shares.append(drafted_rate / plain_rate)
        usages += [each.usage for each in drafted]
    usage = total(usages)
    low, middle, high = (quantile(shares, q) for q in (0.25, 0.5, 0.75))
    row = {
        "batch": size, "vs_plain": [low, middle, high], "at_least": middle >= LEAST,
        "proposed_per_token": usage.proposed / usage.output_tokens, "tokens_per_pass": usage.output_tokens / usage.steps,
    }  # fmt: skip
    return row, unequal


def _together(
    engine: Engine, prompts: Sequence[list[int]], sampling: SamplingParams, speculate: bool
) -> tuple[list[Completion], float]:
    """Completions in order, and tokens a second once all have begun."""
    requests = [Request(prompt=ids, id=f"batch-{i}", sampling=sampling, speculate=speculate) for i, ids in enumerate(prompts)]
    begun: set[str] = set()
    done: dict[str, Completion] = {}
    start, count = 0.0, 0
    for event in engine.generate(requests):
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Done):
            assert isinstance(event.result, Completion)
            done[event.request_id] = event.result
        elif start:
            count += len(event.token_ids)
        else:
            begun.add(event.request_id)
            start = time.perf_counter() if len(begun) == len(requests) else 0.0
    if not count:
        raise UsageError(
            f"{sampling.max_tokens} tokens are too few: one request of a batch of {len(requests)} ends before the last begins"
        )
    return [done[request.id] for request in requests], count / (time.perf_counter() - start)


def _show(console: Console, result: dict[str, Any]) -> None:
    tables.verdict(console, result)
    body = [
        (
            str(row["batch"]),
            f"{row['vs_plain'][1]:.3f}" if "vs_plain" in row else "withheld",
            "{0:.3f}-{2:.3f}".format(*row["vs_plain"]) if "vs_plain" in row else "-",
            f"{row['proposed_per_token']:.2f}",
            f"{row['tokens_per_pass']:.2f}",
            ("yes" if row["at_least"] else "NO") if "at_least" in row else "-",
        )
        for row in result["batches"]
    ]
    title = f"speculation over plain decoding by batch, temperature {result['temperature']:g}"
    tables.show(console, title, HEAD, body)
    name = f"bench-speculation-batches-{result['temperature']:g}"
    console.print(tables.markdown(name, HEAD, body), markup=False, highlight=False, soft_wrap=True)
