"""Speculation in batches: several requests together with a drafter that chooses its own draft, against the same without it.

In: an engine with a drafter, prompts.   Out: JSON (a row a batch size, verdict), a table.
Knows nothing about: drafters.
Invariants: no time and no ratio is given where an engine of whole numbers (int8, int4) gave other tokens with the drafter. A row says
whether the ratio, tokens a second over those of plain decoding, is at least LEAST.
Method: per size and round both once, in an order that alternates; the first round warms up and is not counted. Tokens and seconds
count from the moment at which every request of the batch has its first token.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import track

from toolkit.bench import tables
from toolkit.bench.accounting import conditional, expected_per_pass, total
from toolkit.bench.speculation_rows import Waits, spread
from toolkit.bench.stats import median, quantile
from toolkit.contracts import Completion, Done, Engine, Failed, Request, SamplingParams
from toolkit.errors import UsageError

SIZES = (1, 2, 4, 8, 16)
LEAST = 0.97  # of plain speed, at any batch size
TIMED = ("vs_plain", "at_least", "plain", "speculative")
HEAD = (
    "batch",
    "tok/s",
    "x plain",
    "first token s",
    "whole s",
    "s a token, 95 %",
    "drafts a token",
    "tokens/pass",
    f">= {LEAST}",
)


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
    kept = [{k: v for k, v in row.items() if not reasons or k not in TIMED} for row in rows]
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


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that ran together: their texts in order, tokens a second once all had begun, seconds that single tokens took."""

    texts: tuple[Completion, ...]
    tok_s: float
    waits: tuple[float, ...]


def _size(
    engine: Engine, chats: Sequence[list[int]], size: int, sampling: SamplingParams, rounds: int
) -> tuple[dict[str, Any], int]:
    plain, drafted = list[Batch](), list[Batch]()
    for turn in range(rounds + 1):
        prompts = [chats[(turn * size + i) % len(chats)] for i in range(size)]
        order = (False, True) if turn % 2 else (True, False)
        found = {speculate: _together(engine, prompts, sampling, speculate) for speculate in order}
        if turn:
            plain.append(found[False])
            drafted.append(found[True])
    pairs = list(zip(plain, drafted, strict=True))
    unequal = sum(a.token_ids != b.token_ids for one, two in pairs for a, b in zip(one.texts, two.texts, strict=True))
    usage = total(text.usage for batch in drafted for text in batch.texts)
    shares = [two.tok_s / one.tok_s for one, two in pairs]
    row = {
        "batch": size, "vs_plain": [quantile(shares, q) for q in (0.25, 0.5, 0.75)],
        "plain": _times(plain), "speculative": _times(drafted), "at_least": quantile(shares, 0.5) >= LEAST,
        "proposed_per_token": usage.proposed / usage.output_tokens, "tokens_per_pass": usage.output_tokens / usage.steps,
        "expected_tokens_per_pass": expected_per_pass(usage), "acceptance_by_position": conditional(usage),
        "requested_tokens": sampling.max_tokens, "output_tokens": usage.output_tokens / (size * rounds),
        "input_tokens": usage.input_tokens / (size * rounds),
    }  # fmt: skip
    return row, unequal


def _times(batches: Sequence[Batch]) -> dict[str, Any]:
    """Of all requests together the rate; of each the rest."""
    timings = [text.timing for batch in batches for text in batch.texts]
    return {
        "decode_tok_s": median([batch.tok_s for batch in batches]),
        "ttft_s": median([each.ttft_s for each in timings]),
        "e2e_s": median([each.e2e_s for each in timings]),
        "wait_s": spread([wait for batch in batches for wait in batch.waits]),
    }


def _together(engine: Engine, prompts: Sequence[list[int]], sampling: SamplingParams, speculate: bool) -> Batch:
    requests = [Request(prompt=ids, id=f"batch-{i}", sampling=sampling, speculate=speculate) for i, ids in enumerate(prompts)]
    waits = {request.id: Waits() for request in requests}
    begun: set[str] = set()
    done: dict[str, Completion] = {}
    start, count = 0.0, 0
    for event in engine.generate(requests):
        now = time.perf_counter()
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Done):
            assert isinstance(event.result, Completion)
            done[event.request_id] = event.result
            continue
        waits[event.request_id].hear(len(event.token_ids), now)
        if start:
            count += len(event.token_ids)
        else:
            begun.add(event.request_id)
            start = now if len(begun) == len(requests) else 0.0
    if not count:
        raise UsageError(
            f"{sampling.max_tokens} tokens are too few: one request of a batch of {len(requests)} ends before the last begins"
        )
    rate = count / (time.perf_counter() - start)
    return Batch(
        tuple(done[request.id] for request in requests), rate, tuple(w for each in waits.values() for w in each.seconds)
    )


def _show(console: Console, result: dict[str, Any]) -> None:
    tables.verdict(console, result)
    body = [_cells(row) for row in result["batches"]]
    title = f"speculation over plain decoding by batch, temperature {result['temperature']:g}; plain / speculative"
    tables.show(console, title, HEAD, body)
    if result["verdict"] == "PASS":
        stops = result["stops_paying_at"]
        console.print(
            f"speculation stops paying at a batch of {stops}" if stops else "speculation pays at every batch that was tried",
            highlight=False,
        )
    tables.for_pages(console, f"bench-speculation-batches-{result['temperature']:g}", HEAD, body)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    drafts = (f"{row['proposed_per_token']:.2f}", f"{row['tokens_per_pass']:.2f}")
    if "vs_plain" not in row:
        return (str(row["batch"]), *["withheld"] * 5, *drafts, "-")
    one, two = row["plain"], row["speculative"]

    def both(name: str, form: str) -> str:
        return f"{one[name]:{form}} / {two[name]:{form}}"

    return (
        str(row["batch"]),
        both("decode_tok_s", ".1f"),
        "{1:.3f} ({0:.3f}-{2:.3f})".format(*row["vs_plain"]),
        both("ttft_s", ".3f"),
        both("e2e_s", ".2f"),
        f"{one['wait_s']['p95']:.4f} / {two['wait_s']['p95']:.4f}",
        *drafts,
        "yes" if row["at_least"] else "NO",
    )
