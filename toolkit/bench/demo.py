"""Demo: constrained greedy beside beam search on real requests, for eyes and as data.

In: an engine; requests of the installed `bfcl-eval` package, evenly spaced over the file (not picked by result).
Out: a panel a request as soon as it is decoded, a closing line, a dict with everything shown.
Knows nothing about: how the engine decodes.
Invariants: both answers of a request run under the same grammar and are decoded together; right means every argument is
among the data set's accepted ones.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from toolkit.bench import bfcl
from toolkit.bench.arms import grammar, whole_logprob
from toolkit.bench.demo_panel import closing, panel
from toolkit.bench.task import Item, Task
from toolkit.contracts import (
    BeamParams,
    BeamResult,
    Completion,
    Done,
    Engine,
    Failed,
    FieldConfidence,
    Request,
    SamplingParams,
)
from toolkit.engine.card import card, line
from toolkit.errors import EngineError, NoValidError

TOGETHER = 4  # requests decoded together after the first
WIDTH, ALPHA = 4, 0.0  # alpha 0: the answer that the model finds likeliest as a whole


def run(engine: Engine, *, limit: int = 12, console: Console | None = None) -> dict[str, Any]:
    """Show `limit` requests; raises MissingExtraError where `bfcl-eval` is not installed."""
    console = console or Console(stderr=True)
    task = bfcl.load()
    items = spread(task, limit)
    console.print(
        f"[bold]{len(items)} user requests[/] of the Berkeley function-calling set, each with its own function schema. "
        f"Greedy and beam {WIDTH} under the same grammar; model {escape(engine.capabilities.model)}."
    )
    start = time.perf_counter()
    records = []
    for group in groups(items):
        for record in answers(engine, task, group):
            records.append(record)
            console.print(panel(record, WIDTH, f"{len(records)}/{len(items)}"))
    right = {
        "greedy": sum(record["greedy"]["right"] for record in records),
        f"beam{WIDTH}": sum(record["beam"]["right"] for record in records),
        f"top{WIDTH}": sum(any(h["right"] for h in record["beam"]["alternatives"]) for record in records),
    }
    found = card(engine)
    seconds = time.perf_counter() - start
    closing(console, right, WIDTH, len(records), seconds)
    console.print(f"[dim]{escape(line(found))}[/]")
    return {"bench": "demo", "records": records, "right": right, "of": len(records), "seconds": seconds, "card": found}


def spread(task: Task, limit: int) -> list[Item]:
    """`limit` items at equal distances."""
    count = len(task.first(limit))
    return [task.items[index * len(task.items) // count] for index in range(count)]


def groups(items: Sequence[Item]) -> list[Sequence[Item]]:
    """The first alone, so that something is seen at once; then several together, which costs little more than one."""
    return [items[:1], *(items[at : at + TOGETHER] for at in range(1, len(items), TOGETHER))]


def answers(engine: Engine, task: Task, items: Sequence[Item]) -> list[dict[str, Any]]:
    """Both answers of every request as data; all of them are decoded together."""
    sampling = SamplingParams(max_tokens=task.max_tokens)
    beam = BeamParams(width=WIDTH, alpha=ALPHA, max_tokens=task.max_tokens)
    requests = []
    for item in items:
        rules = grammar(item)
        requests.append(Request(prompt=item.prompt, id=f"greedy {item.id}", grammar=rules, sampling=sampling))
        requests.append(Request(prompt=item.prompt, id=f"beam {item.id}", grammar=rules, beam=beam))
    ended = {event.request_id: event for event in engine.generate(requests) if isinstance(event, Done | Failed)}
    if len(ended) != len(requests):
        raise EngineError(f"the engine gave {len(ended)} results for {len(requests)} requests")
    return [
        {
            "id": item.id,
            "text": item.text,
            "schema": item.schema,
            "greedy": _greedy(engine, task, item, ended[f"greedy {item.id}"]),
            "beam": _beam(task, item, ended[f"beam {item.id}"]),
        }
        for item in items
    ]


def _greedy(engine: Engine, task: Task, item: Item, event: Done | Failed) -> dict[str, Any]:
    if isinstance(event, Failed):
        raise event.error
    from toolkit.validate.check import Validator

    result = event.result
    if not isinstance(result, Completion):
        raise EngineError("a greedy request was answered by a beam")
    report = Validator(grammar(item)).check(result.text)
    return {
        "text": result.text,
        "value": report.value,
        "valid": report.valid,
        "right": report.valid and task.judge(item.gold, report.value).exact,
        "sum_logprob": whole_logprob(engine, item.prompt, result) if report.valid else None,
    }


def _beam(task: Task, item: Item, event: Done | Failed) -> dict[str, Any]:
    if isinstance(event, Failed):
        if not isinstance(event.error, NoValidError):
            raise event.error
        return {"value": None, "valid": False, "score": None, "right": False, "alternatives": [], "confidence": {}}
    result = event.result
    if not isinstance(result, BeamResult):
        raise EngineError("a beam request was answered by a sample")
    alternatives = [
        {
            "value": hypothesis.value,
            "score": hypothesis.score,
            "sum_logprob": hypothesis.sum_logprob,
            "valid": hypothesis.valid,
            "right": hypothesis.valid and task.judge(item.gold, hypothesis.value).exact,
        }
        for hypothesis in result.alternatives
    ]
    return {
        "value": result.value,
        "valid": result.valid,
        "score": result.score,
        "sum_logprob": result.sum_logprob,
        "right": result.valid and task.judge(item.gold, result.value).exact,
        "alternatives": alternatives,
        "confidence": {path: _confidence(field) for path, field in result.confidence.items()},
    }


def _confidence(field: FieldConfidence) -> dict[str, Any]:
    return {"product": field.product, "minimum": field.minimum, "tokens": field.tokens, "margin": field.margin}
