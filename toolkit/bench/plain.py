"""Plain decoding: one request against llama.cpp, eight requests together against one, interleaved prompt by prompt.

In: an engine and, where installed, a llama.cpp peer over the same GGUF file.   Out: JSON (arms, ratios, verdict), a table.
Invariants: no speed is given unless eight requests together gave, token for token, what each gave alone.
Method: per prompt every arm once, in an order that rotates; medians of per-prompt ratios with quartiles; the first prompt
warms up. decode_tok_s = (tokens - 1) / (e2e - ttft) for one request, all tokens over the whole time for eight.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from toolkit.bench.llamacpp_peer import LlamaCppPeer
from toolkit.bench.stats import quantile
from toolkit.contracts import Completion, Done, Engine, Request, SamplingParams
from toolkit.engine.card import card, line

PROMPTS = (
    "Explain why the sky is blue.",
    "Write a short story about a lighthouse keeper.",
    "List three uses of a paper clip and say how each works.",
    "What is the difference between a frog and a toad?",
    "Describe how bread is made, step by step.",
    "Give me advice for a first job interview.",
    "Summarise the plot of a story in which a dog saves a village.",
    "How does a bicycle stay upright?",
)


def run(
    engine: Engine, *, peer: LlamaCppPeer | None = None, tokens: int = 96, rounds: int = 2, console: Console | None = None
) -> dict[str, Any]:
    """Measure `rounds` times over the eight prompts; `tokens` greedy tokens each, end tokens not obeyed."""
    console = console or Console(stderr=True)
    chats = [engine.tokenizer.chat([{"role": "user", "content": text}]) for text in PROMPTS]
    rows: list[dict[str, Any]] = []
    _row(engine, peer, chats, 0, tokens)
    for index in track(range(rounds * len(chats)), "plain decoding", console=console, transient=True):
        rows.append(_row(engine, peer, chats, index, tokens))
    result = _summary(rows, peer is not None) | {"card": card(engine), "tokens": tokens}
    _show(console, result)
    return result


def _row(engine: Engine, peer: LlamaCppPeer | None, chats: Sequence[list[int]], index: int, tokens: int) -> dict[str, Any]:
    mine = chats[index % len(chats)]
    eight = [chats[(index + i) % len(chats)] for i in range(8)]
    arms: dict[str, Callable[[], Any]] = {
        "plain": lambda: _together(engine, [mine], tokens),
        "batch8": lambda: _together(engine, eight, tokens),
    }
    if peer is not None:
        arms["llamacpp"] = lambda: peer.greedy(mine, tokens)
    names = list(arms)
    found = {name: arms[name]() for name in names[index % len(names) :] + names[: index % len(names)]}
    (alone,), alone_s = found["plain"]
    batch, batch_s = found["batch8"]
    row = {
        "plain": alone.timing.decode_tok_s,
        "ttft": alone.timing.ttft_s,
        "batch8": sum(len(each.token_ids) for each in batch) / batch_s,
        "batch1": len(alone.token_ids) / alone_s,
        "equal": batch[0].token_ids == alone.token_ids,
    }
    if peer is not None:
        row |= {"llamacpp": found["llamacpp"].decode_tok_s, "llamacpp_ttft": found["llamacpp"].ttft_s}
    return row


def _together(engine: Engine, prompts: Sequence[list[int]], tokens: int) -> tuple[list[Completion], float]:
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    start, done = time.perf_counter(), {}
    for event in engine.generate(Request(prompt=ids, id=f"plain-{i}", sampling=sampling) for i, ids in enumerate(prompts)):
        if isinstance(event, Done):
            done[event.request_id] = event.result
        elif hasattr(event, "error"):
            raise event.error
    seconds = time.perf_counter() - start
    return [done[f"plain-{i}"] for i in range(len(prompts))], seconds  # type: ignore[misc]


def _summary(rows: Sequence[dict[str, Any]], has_peer: bool) -> dict[str, Any]:
    unequal = sum(not row["equal"] for row in rows)
    if unequal:
        why = f"{unequal} of {len(rows)} texts differ alone and in a batch of eight: no speed is given"
        return {"verdict": "HOLD", "reasons": [why], "arms": {}, "ratios": {}}
    ratios = {"batch8_vs_1": quartiles([row["batch8"] / row["batch1"] for row in rows])}
    arms = {"plain": quartiles([row["plain"] for row in rows]), "batch8": quartiles([row["batch8"] for row in rows])}
    if has_peer:
        ratios["plain_vs_llamacpp"] = quartiles([row["plain"] / row["llamacpp"] for row in rows])
        arms["llamacpp"] = quartiles([row["llamacpp"] for row in rows])
    return {"verdict": "PASS", "reasons": [], "arms": arms, "ratios": ratios}


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    return quantile(values, 0.25), quantile(values, 0.5), quantile(values, 0.75)


def _show(console: Console, result: dict[str, Any]) -> None:
    for why in result["reasons"]:
        console.print(f"[red]HOLD[/red] {why}")
    for title, figures in (("tokens per second", result["arms"]), ("ratios", result["ratios"])):
        table = Table("", "median", "quartiles", title=title, title_justify="left")
        for name, (low, middle, high) in figures.items():
            table.add_row(name, f"{middle:.2f}", f"{low:.2f} to {high:.2f}")
        if figures:
            console.print(table)
    console.print(line(result["card"]))
