"""Drill: thousands of structured texts through engines whose speculation is broken on purpose. What gets past the guard?

    for each fault: a fresh engine, the fault planted; half of the texts under a grammar, half watched only; a share is audited
    text -> what became of it: right | repaired | reported | unnoticed: valid, but another text | INVALID BUT DELIVERED AS VALID

The truth of every text is known: the model copies a document. What is delivered as valid is judged by code that shares nothing with
the validators (records.py).
In: how many texts, which share is audited.   Out: JSON (verdict, rows, sums), a table.
Invariants: HOLD if one invalid text was delivered as valid, if an audited text is wrong, or if texts are missing. Speculation is
not put on hold while it is drilled.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from toolkit.contracts import Completion, Done, Event, Failed, Grammar, Request, SamplingParams, Watch
from toolkit.engine.breaker import Breaker
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.forward import Forward
from toolkit.engine.watch import raw_bytes
from toolkit.errors import UsageError
from toolkit.gate.echo import EchoDecoder, prompt_of
from toolkit.gate.faults import DRILLED, FAULTS
from toolkit.gate.records import SCHEMA, document, problem

ROOM = 24  # tokens beyond the document
COLUMNS = ("generations", "altered", "parser", "validator", "audit", "grammar", "engine", "repaired", "reported", "unnoticed",
           "audited_wrong", "delivered_invalid")  # fmt: skip


def run(*, count: int = 10_000, audit: float = 0.5, console: Console | None = None) -> dict[str, Any]:
    """Drill every fault with `count` texts in all, and an engine without one as the control."""
    console = console or Console(stderr=True)
    names = ["", *DRILLED]
    rows: dict[str, dict[str, int]] = {}
    start = time.perf_counter()
    for place, name in enumerate(names):
        share = count // len(names) + (place < count % len(names))
        rows[name or "none"] = drill(name, range(place * count, place * count + share), audit)
        console.print(f"{name or 'none'}: {rows[name or 'none']}")
    total = {column: sum(row[column] for row in rows.values()) for column in COLUMNS}
    reasons = _reasons(rows, total, count)
    result = {"verdict": "HOLD" if reasons else "PASS", "reasons": reasons, "faults": rows, "total": total, "audit": audit,
              "seconds": time.perf_counter() - start}  # fmt: skip
    _show(console, result)
    return result


def drill(fault: str, numbers: range, audit: float) -> dict[str, int]:
    """Counts of one fault ("" = none) over the documents of those numbers."""
    counts = Counter[str]()
    with echo_engine(audit) as engine:
        if fault:
            FAULTS.load(fault)(engine)
        for event in engine.generate(_requests(numbers)):
            if isinstance(event, Done | Failed):
                counts["generations"] += 1
                counts.update(_outcome(engine, event))
        if engine.kv_blocks_in_use:
            raise AssertionError(f"{engine.kv_blocks_in_use} KV blocks are lost")
    return {column: counts[column] for column in COLUMNS}


def echo_engine(audit: float = 0.0, breaker: Breaker | None = None) -> EmbeddedEngine:
    """An engine over the echo model with the n-gram drafter; `breaker` None = never on hold."""
    engine = EmbeddedEngine(
        "tiny", format="float32", drafter="ngram", draft={"tokens": 6}, kv_blocks=1024, audit=audit,
        breaker=breaker or Breaker(None),
    )  # fmt: skip
    forward = Forward(
        EchoDecoder(), vocab_size=engine.tokenizer.vocab_size, kv_blocks=1024, block_size=16, device=torch.device("cpu")
    )
    engine._forward = engine._worker._scheduler.forward = forward  # type: ignore[attr-defined]
    return engine


def _requests(numbers: range) -> Iterator[Request]:
    schema = json.dumps(SCHEMA)
    for number in numbers:
        raw = document(number).encode()
        masked = number % 2 == 0
        yield Request(
            id=str(number),
            prompt=prompt_of(raw),
            sampling=SamplingParams(max_tokens=len(raw) + ROOM),
            grammar=Grammar("json_schema", schema) if masked else None,
            watch=None if masked else Watch(kind="json", schema=schema),
        )


def _outcome(engine: EmbeddedEngine, event: Event) -> Iterator[str]:
    """The columns that one text counts in."""
    if isinstance(event, Failed):
        yield from ("altered", "reported")
        yield "grammar" if isinstance(event.error, UsageError) else "engine"
        return
    assert isinstance(event, Done) and isinstance(event.result, Completion)
    result, truth = event.result, document(int(event.request_id))
    caught = [each for each in result.incidents if each.kind == "speculation"]
    if caught or result.text != truth:
        yield "altered"
    if caught:
        yield caught[0].found_by
    if result.text == truth:
        if caught:
            yield "repaired"
    elif result.valid is False:  # None: nobody has looked, and nothing is reported
        yield "reported"
    elif problem(result.text, raw_bytes(result.token_ids, engine.tokenizer)) is not None:
        yield "delivered_invalid"
    else:
        yield "unnoticed"
        if result.audit is not None:
            yield "audited_wrong"


def _reasons(rows: dict[str, dict[str, int]], total: dict[str, int], count: int) -> list[str]:
    reasons = [
        f"{total[name]} texts: {name.replace('_', ' ')}" for name in ("delivered_invalid", "audited_wrong") if total[name]
    ]
    if total["generations"] != count:
        reasons.append(f"{total['generations']} of {count} texts came back")
    if rows["none"]["altered"]:
        reasons.append(f"{rows['none']['altered']} texts were altered without a fault")
    silent = [name for name, row in rows.items() if name != "none" and not row["altered"]]
    if silent and count >= 50 * len(rows):
        reasons.append(f"faults that did nothing: {', '.join(silent)}")
    return reasons


def _show(console: Console, result: dict[str, Any]) -> None:
    for why in result["reasons"]:
        console.print(f"[red]HOLD[/red] {why}")
    table = Table("fault", *(name.replace("_", " ") for name in COLUMNS), title=f"drill, {result['audit']:.0%} audited")
    for name, row in [*result["faults"].items(), ("all", result["total"])]:
        table.add_row(name.replace("_", " "), *(str(row[column]) for column in COLUMNS))
    console.print(table)
