"""Plain decoding: one request and eight together, against each other and against llama.cpp's one and eight, prompt by prompt in turn.

In: an engine, engines of the same model in other formats, and, where installed, a llama.cpp peer over the same GGUF file.
Out: JSON (arms, ratios, verdict), a table.
Invariants: no speed is given unless eight requests together gave, token for token, what each gave alone. llama.cpp promises no such
thing: how many of its texts were the same is told.
Method: per prompt every arm once, in an order that rotates; medians of per-prompt ratios with quartiles; the first prompt
warms up. decode_tok_s = (tokens - 1) / (e2e - ttft) for one request, all tokens over the whole time for eight.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from toolkit.bench.llamacpp_apart import LlamaCppApart
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
    engine: Engine, *, other: Mapping[str, Engine] | None = None, peer: LlamaCppApart | None = None, tokens: int = 96,
    rounds: int = 2, console: Console | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Measure `rounds` times over the eight prompts; `tokens` greedy tokens each, end tokens not obeyed.

    `other`: the same model in other formats, by the names that their figures get.
    """
    console, engines = console or Console(stderr=True), {"plain": engine} | dict(other or {})
    chats = [engine.tokenizer.chat([{"role": "user", "content": text}]) for text in PROMPTS]
    rows: list[dict[str, Any]] = []
    _row(engines, peer, chats, 0, tokens)
    for index in track(range(rounds * len(chats)), "plain decoding", console=console, transient=True):
        rows.append(_row(engines, peer, chats, index, tokens))
    result = _summary(rows, list(engines), peer is not None) | {"card": card(engine), "tokens": tokens}
    _show(console, result)
    return result


def _row(
    engines: Mapping[str, Engine], peer: LlamaCppApart | None, chats: Sequence[list[int]], index: int, tokens: int
) -> dict[str, Any]:
    """One prompt alone and with the seven after it, in every arm: tokens per second, and whether its text is the same in both."""
    mine = chats[index % len(chats)]
    eight = [chats[(index + i) % len(chats)] for i in range(8)]
    arms: dict[str, Callable[[], Any]] = {}
    for name, engine in engines.items():
        arms[name] = partial(_together, engine, [mine], tokens)
        arms[_eight(name)] = partial(_together, engine, eight, tokens)
    if peer is not None:
        arms["llamacpp"], arms["llamacpp8"] = partial(peer.greedy, mine, tokens), partial(peer.together, eight, tokens)
    names = list(arms)
    found = {name: arms[name]() for name in names[index % len(names) :] + names[: index % len(names)]}
    row: dict[str, Any] = {"equal": True}
    for name in engines:
        (alone,), alone_s = found[name]
        batch, batch_s = found[_eight(name)]
        row[name], row[_eight(name)] = alone.timing.decode_tok_s, sum(len(each.token_ids) for each in batch) / batch_s
        row[f"{name} whole"] = len(alone.token_ids) / alone_s
        row["equal"] &= batch[0].token_ids == alone.token_ids
    if peer is not None:
        row |= {"llamacpp": found["llamacpp"].decode_tok_s, "llamacpp8": found["llamacpp8"].tok_s}
        row["llamacpp equal"] = found["llamacpp8"].token_ids[0] == found["llamacpp"].token_ids
    return row


def _eight(name: str) -> str:
    return "batch8" if name == "plain" else f"{name}_batch8"


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


def _summary(rows: Sequence[dict[str, Any]], engines: Sequence[str], has_peer: bool) -> dict[str, Any]:
    unequal = sum(not row["equal"] for row in rows)
    if unequal:
        why = f"{unequal} of {len(rows)} texts differ alone and in a batch of eight: no speed is given"
        return {"verdict": "HOLD", "reasons": [why], "arms": {}, "ratios": {}}

    def ratio(one: str, other: str) -> tuple[float, float, float]:
        return quartiles([row[one] / row[other] for row in rows])

    names = [each for name in engines for each in (name, _eight(name))] + (["llamacpp", "llamacpp8"] if has_peer else [])
    result: dict[str, Any] = {"arms": {name: quartiles([row[name] for row in rows]) for name in names}}
    ratios = {f"{_eight(name)}_vs_1": ratio(_eight(name), f"{name} whole") for name in engines}
    for name in engines[1:]:
        ratios |= {f"{name}_vs_plain": ratio(name, "plain"), f"{_eight(name)}_vs_batch8": ratio(_eight(name), "batch8")}
    if has_peer:
        for name in engines:
            ratios |= {
                f"{name}_vs_llamacpp": ratio(name, "llamacpp"),
                f"{_eight(name)}_vs_llamacpp8": ratio(_eight(name), "llamacpp8"),
            }
        result["llamacpp_equal"] = [sum(row["llamacpp equal"] for row in rows), len(rows)]
    return {"verdict": "PASS", "reasons": [], "ratios": ratios} | result


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
    if "llamacpp_equal" in result:
        same, all_of = result["llamacpp_equal"]
        console.print(f"llama.cpp wrote the same text alone and in a batch of eight for {same} of {all_of} prompts")
    console.print(line(result["card"]))
