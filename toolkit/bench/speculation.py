"""Speculation: greedy decoding with each drafter against the same engine's plain decoding and llama.cpp's, by kind of prompt.

In: engines by arm, prompts by kind, where installed a llama.cpp peer.   Out: JSON (verdict, kinds, arms, ratios), tables.
Knows nothing about: drafters.
Invariants: no speed is given unless every arm gave, token for token, what plain decoding gave (float32: but for a near-tie,
counted), and every book balances.
Method: batch 1. The ceiling first: how fast this machine reads memory. Then every arm once over the first prompt, which warms up
and is not counted. Per prompt plain decoding as the reference, untimed; then plain, every arm and the peer once each, in an order
that rotates. Texts end where the model ends them. The rate is over the time after the first token, which it leaves out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from rich.console import Console
from rich.progress import track

from toolkit.bench import speculation_report, speculation_tables
from toolkit.bench.accounting import model_of
from toolkit.bench.bandwidth import ceiling, read_bandwidth
from toolkit.bench.llamacpp_peer import Run
from toolkit.bench.peers import gap
from toolkit.bench.speculation_rows import PEER, PLAIN, Row, Sample, Waits
from toolkit.contracts import Completion, Delta, Done, Engine, Request, SamplingParams, Usage, require
from toolkit.engine.admission import prompt_ids
from toolkit.engine.card import card
from toolkit.engine.repeats import repetition
from toolkit.results import answered

TIE = 1e-4  # nats between two tokens that float32 may order otherwise with other rows in the pass


class Timed(NamedTuple):
    """A text, and how long each of its tokens after the first was waited for."""

    result: Completion
    waits: tuple[float, ...]


class Peer(Protocol):
    """llama.cpp, or what stands in for it."""

    def greedy(self, prompt: Sequence[int], count: int) -> Run: ...


def run(
    engines: Mapping[str, Engine], prompts: Mapping[str, Sequence[str]], *, peer: Peer | None = None, tokens: int = 128,
    rounds: int = 1, temperature: float = 0.0, console: Console | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Measure every arm `rounds` times over all prompts, at most `tokens` tokens each.

    Above temperature 0 tokens are not compared: drafts that were drawn give other ones, equally distributed.
    """
    require(
        bool(engines) and PLAIN not in engines and PEER not in engines, "arms", list(engines), "one at least, none named so"
    )
    require(any(prompts.values()), "prompts", dict(prompts), "one at least")
    console = console or Console(stderr=True)
    sampling = SamplingParams(max_tokens=tokens, temperature=temperature, seed=1 if temperature > 0 else None)
    work = [(kind, text) for _ in range(rounds) for kind, texts in prompts.items() for text in texts]
    rows: dict[str, list[Row]] = {kind: [] for kind in prompts}
    first = next(iter(engines.values()))
    models = {PLAIN: model_of(first), **{name: model_of(engine) for name, engine in engines.items()}}
    target = models[PLAIN]
    machine = ceiling(target, read_bandwidth(target.weight_bytes) if target is not None else 0.0)
    speculation_tables.show_ceiling(console, machine)
    _row(engines, peer, work[0][1], sampling, 0)
    for index, (kind, text) in enumerate(track(work, "speculation", console=console, transient=True)):
        rows[kind].append(_row(engines, peer, text, sampling, index))
    tie = 0.0 if all(getattr(each, "format", "").startswith(("int8", "int4")) for each in engines.values()) else TIE
    result = speculation_report.summarise(
        rows, list(engines), tokens=tokens, temperature=temperature, rounds=rounds, tie_nats=tie,
        models=models, machine=machine,
    ) | {"card": card(first)}  # fmt: skip
    speculation_tables.show(console, result)
    return result


def _row(engines: Mapping[str, Engine], peer: Peer | None, text: str, sampling: SamplingParams, index: int) -> Row:
    plain = next(iter(engines.values()))
    ids = prompt_ids([{"role": "user", "content": text}], plain.tokenizer)
    reference = _decode(plain, ids, sampling, speculate=False).result
    arms: dict[str, Callable[[], Sample]] = {
        PLAIN: lambda: _sample(plain, ids, reference, _decode(plain, ids, sampling, speculate=False), sampling),
        **{name: lambda engine=engine: _arm(engine, ids, reference, sampling) for name, engine in engines.items()},  # type: ignore[misc]
    }
    if peer is not None and len(reference.token_ids) > 1:
        arms[PEER] = lambda: _peer(peer, ids, len(reference.token_ids))
    names = list(arms)
    turn = index % len(names)
    return {name: arms[name]() for name in names[turn:] + names[:turn]}


def _decode(engine: Engine, ids: Sequence[int], sampling: SamplingParams, *, speculate: bool = True) -> Timed:
    request = Request(prompt=ids, sampling=sampling, speculate=speculate)
    waits, result = Waits(), None
    for event in answered(engine.generate([request])):
        if isinstance(event, Done):
            result = event.result
        elif isinstance(event, Delta):
            waits.hear(len(event.token_ids), time.perf_counter())
    assert isinstance(result, Completion)
    return Timed(result, tuple(waits.seconds))


def _arm(engine: Engine, ids: Sequence[int], reference: Completion, sampling: SamplingParams) -> Sample:
    return _sample(engine, ids, reference, _decode(engine, ids, sampling), sampling)


def _sample(engine: Engine, ids: Sequence[int], reference: Completion, timed: Timed, sampling: SamplingParams) -> Sample:
    found = timed.result
    compared = reference.seed is None
    same = found.token_ids == reference.token_ids
    timing = found.timing
    return Sample(
        tokens=len(found.token_ids),
        decode_s=timing.e2e_s - timing.ttft_s,
        ttft_s=timing.ttft_s,
        e2e_s=timing.e2e_s,
        usage=found.usage,
        same=same if compared else None,
        gap=0.0 if same or not compared else gap(engine, ids, found.token_ids, reference.token_ids),
        notes=found.notes,
        asked=sampling.max_tokens,
        repetition=repetition(found.token_ids),
        waits=timed.waits,
    )


def _peer(peer: Peer, ids: Sequence[int], count: int) -> Sample:
    found = peer.greedy(ids, count)
    return Sample(
        tokens=count,
        decode_s=found.e2e_s - found.ttft_s,
        ttft_s=found.ttft_s,
        e2e_s=found.e2e_s,
        usage=Usage(output_tokens=count, steps=count),
    )
