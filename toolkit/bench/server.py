"""Server: on one SGLang server, plain greedy text, the server's own beam search (no constraint), and our constrained beam search.

In: an engine over HTTP, BFCL records.   Out: JSON (arms, steps, agreement with the embedded engine, verdict, card), a table.
Knows nothing about: how the server decodes.
Invariants: no seconds are given, and the verdict is HOLD, unless our beams agree with the embedded engine's on the same folder in
float32: the same best value in at least 96 of 100 records, scores of those within 1e-3. Validity is the validator's word.
Method: per record all three arms, one request at a time, in an order that rotates from record to record; one record warms up.
Figures of a step: client milliseconds are those of a round less the wait for the server; client CPU is that of the round's thread,
HTTP included, and stands on a busy machine too; cached is the share of tokens sent after
the first step that the server had in its cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import track

from toolkit.bench import bfcl, tables
from toolkit.bench.arms import grammar
from toolkit.bench.task import Item
from toolkit.contracts import BeamParams, BeamResult, Completion, Engine, Request, SamplingParams
from toolkit.engine.admission import prompt_ids
from toolkit.engine.card import card
from toolkit.engine.engine import open_engine
from toolkit.engine.remote.engine import SGLangEngine
from toolkit.errors import NoValidError, UnsupportedError, UsageError
from toolkit.results import only_result

SAME_SHARE, SAME_SCORE = 0.96, 1e-3
HEAD = ("arm", "s/record", "s/output token", "output tokens", "valid")


@dataclass(frozen=True, slots=True)
class _Run:
    """One record on one arm."""

    seconds: float
    tokens: int
    valid: bool
    result: BeamResult | None = None


def run(
    engine: Engine, *, data: Path | None = None, limit: int | None = 50, width: int = 4, alpha: float = 1.0, max_tokens: int = 96,
    console: Console | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Measure on the first `limit` BFCL records. UnsupportedError for an engine that is no server."""
    if not isinstance(engine, SGLangEngine):
        raise UnsupportedError(f"engine {engine.capabilities.engine} is no server", hint="--engine URL")
    items = bfcl.load(data, max_tokens=max_tokens).first(limit)
    if not items:
        raise UsageError("there is no record to measure on")
    console = console or Console(stderr=True)
    params = BeamParams(width=width, alpha=alpha, max_tokens=max_tokens)
    _record(engine, items[0], params, 0)
    before = engine.clock
    found = [_record(engine, item, params, i) for i, item in enumerate(track(items, "server", console=console, transient=True))]
    after = engine.clock
    result = _summary(found, params) | {"agreement": _agreement(engine, items, found, params, console), "card": card(engine)}
    rounds = after.rounds - before.rounds
    result["steps"]["rounds"] = rounds
    client = (after.total_s - before.total_s) - (after.server_s - before.server_s)
    result["steps"]["client_ms"] = 1e3 * client / rounds
    result["steps"]["client_cpu_ms"] = 1e3 * (after.cpu_s - before.cpu_s) / rounds
    result["steps"]["server_ms"] = 1e3 * (after.server_s - before.server_s) / rounds
    _judge(result)
    _show(console, result)
    return result


def _record(engine: SGLangEngine, item: Item, params: BeamParams, turn: int) -> dict[str, _Run]:
    ids = prompt_ids(item.prompt, engine.tokenizer)
    arms: dict[str, Callable[[], _Run]] = {
        "plain greedy": lambda: _greedy(engine, ids, item, params),
        "server beam": lambda: _native(engine, ids, item, params),
        "our beam": lambda: _ours(engine, ids, item, params),
    }
    names = list(arms)
    order = [names[(i + turn) % len(names)] for i in range(len(names))]
    return {name: arms[name]() for name in order}


def _greedy(engine: Engine, ids: Sequence[int], item: Item, params: BeamParams) -> _Run:
    start = time.perf_counter()
    done = only_result(engine.generate([Request(prompt=ids, sampling=SamplingParams(max_tokens=params.max_tokens))]))
    seconds = time.perf_counter() - start
    assert isinstance(done, Completion)
    return _Run(seconds, len(done.token_ids), _valid(item, done.text))


def _native(engine: SGLangEngine, ids: Sequence[int], item: Item, params: BeamParams) -> _Run:
    start = time.perf_counter()
    text, tokens = engine.server_beam(ids, width=params.width, max_tokens=params.max_tokens)
    return _Run(time.perf_counter() - start, tokens, _valid(item, text))


def _ours(engine: Engine, ids: Sequence[int], item: Item, params: BeamParams) -> _Run:
    start = time.perf_counter()
    try:
        found = only_result(engine.generate([Request(prompt=ids, beam=params, grammar=grammar(item))]))
    except NoValidError:
        return _Run(time.perf_counter() - start, params.max_tokens, False)
    seconds = time.perf_counter() - start
    assert isinstance(found, BeamResult)
    return _Run(seconds, found.usage.output_tokens, _valid(item, found.text), found)


def _valid(item: Item, text: str) -> bool:
    from toolkit.validate.check import Validator

    return Validator(grammar(item)).check(text).valid


def _summary(found: Sequence[dict[str, _Run]], params: BeamParams) -> dict[str, Any]:
    arms = [
        {
            "name": name,
            "seconds": median(each[name].seconds for each in found),
            "seconds_per_token": median(each[name].seconds / max(each[name].tokens, 1) for each in found),
            "output_tokens": sum(each[name].tokens for each in found) / len(found),
            "valid": sum(each[name].valid for each in found),
        }
        for name in found[0]
    ]
    usages = [one.usage for each in found if (one := each["our beam"].result) is not None]
    later = sum(one.tokens_sent - one.input_tokens for one in usages)
    computed = sum(one.rows - (one.input_tokens - one.cached_tokens) for one in usages)
    return {
        "records": len(found),
        "width": params.width,
        "alpha": params.alpha,
        "max_tokens": params.max_tokens,
        "arms": sorted(arms, key=lambda arm: str(arm["name"])),
        "steps": {
            "requests": sum(one.requests for one in usages),
            "passes": sum(one.passes for one in usages),
            "tokens_sent": sum(one.tokens_sent for one in usages),
            "tokens_computed": sum(one.rows for one in usages),
            "cached_share_after_first": 1 - computed / later if later else None,
        },
    }


def _agreement(
    engine: SGLangEngine, items: Sequence[Item], found: Sequence[dict[str, _Run]], params: BeamParams, console: Console
) -> dict[str, Any]:
    """Our beams against those of the embedded engine over the server's own folder, in float32."""
    folder = engine.facts.model
    if not Path(folder).is_dir():
        return {"checked": 0, "same": 0, "worst_score": None, "why": f"the server's model {folder} cannot be read from here"}
    same, worst, differ = 0, 0.0, []
    embedded = open_engine("embedded", model=folder, format="float32")
    try:
        for item, each in zip(track(items, "embedded", console=console, transient=True), found, strict=True):
            here, there = (
                _ours(embedded, prompt_ids(item.prompt, embedded.tokenizer), item, params).result,
                each["our beam"].result,
            )
            if (here and here.value) == (there and there.value):
                same += 1
                worst = max(worst, abs(here.score - there.score) if here and there else 0.0)
            else:
                differ.append(item.id)
    finally:
        embedded.close()
    return {"checked": len(items), "same": same, "worst_score": worst, "differ": differ}


def _judge(result: dict[str, Any]) -> None:
    """The verdict; seconds are taken out unless it is PASS."""
    agreement, reasons = result["agreement"], []
    if not agreement["checked"]:
        reasons.append(agreement["why"])
    elif agreement["same"] < SAME_SHARE * agreement["checked"]:
        reasons.append(f"{agreement['same']} of {agreement['checked']} best values are those of the embedded engine")
    elif agreement["worst_score"] > SAME_SCORE:
        reasons.append(f"scores differ by up to {agreement['worst_score']:.2g}")
    result |= {"verdict": "HOLD" if reasons else "PASS", "reasons": reasons}
    if reasons:
        for arm in result["arms"]:
            del arm["seconds"], arm["seconds_per_token"]
        for name in ("client_ms", "client_cpu_ms", "server_ms"):
            del result["steps"][name]


def _show(console: Console, result: dict[str, Any]) -> None:
    count = result["records"]
    body = [
        (
            arm["name"],
            f"{arm['seconds']:.2f}" if "seconds" in arm else "withheld",
            f"{arm['seconds_per_token']:.3f}" if "seconds" in arm else "withheld",
            f"{arm['output_tokens']:.1f}",
            f"{arm['valid']} of {count}",
        )
        for arm in result["arms"]
    ]
    tables.show(console, f"one server, {count} function calls, width {result['width']}", HEAD, body)
    steps, agreement = result["steps"], result["agreement"]
    shown = [f"{steps['requests']} requests for {steps['passes']} steps"]
    if steps["cached_share_after_first"] is not None:  # no search had a second step, or none found anything
        shown.append(f"{100 * steps['cached_share_after_first']:.1f} % cached")
    if "client_ms" in steps:
        shown.append(
            f"{steps['client_ms']:.1f} ms client ({steps['client_cpu_ms']:.1f} of CPU), {steps['server_ms']:.0f} ms server a step"
        )
    console.print(", ".join(shown))
    console.print(f"{agreement['same']} of {agreement['checked']} best values are those of the embedded engine")
    tables.verdict(console, result)
    console.print(tables.markdown("bench-server", HEAD, body), markup=False, highlight=False, soft_wrap=True)
