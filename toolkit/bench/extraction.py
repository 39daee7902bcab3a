"""Extraction: how good constrained greedy and beam search answer, and what a beam costs, on records with known answers.

In: an engine, a task by name, settings.   Out: JSON (arms, pairs, ratios, verdict, card), tables on the console, rows in a file.
Knows nothing about: data sets (a table of tasks names them), how an engine decodes.
Invariants: correctness before speed - seconds are withheld, and the verdict is HOLD with the reasons, unless every delivered
value passed the validator and a beam of width 1 gave the tokens of constrained greedy on every record of the run.
Method: records go in chunks, a chunk under all settings before the next, in an order that rotates from chunk to chunk, so
that drift of the machine and a warm prefix cache hit all settings alike; one record warms up first, unmeasured.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from toolkit.bench import arms, summary, tables
from toolkit.bench.arms import GREEDY, TWIN, Setting
from toolkit.bench.rowlog import RowLog
from toolkit.bench.task import Item, Style, Task
from toolkit.contracts import Engine, require
from toolkit.engine.card import card
from toolkit.errors import UsageError
from toolkit.plugins import Table

TASKS = Table("task", {"bfcl": "toolkit.bench.bfcl:load", "snips": "toolkit.bench.snips:load"})


def run(
    engine: Engine, *, task: str, data: Path | None = None, limit: int | None = None,
    settings: Sequence[str] = arms.DEFAULT, batch: int = 8, console: Console | None = None,
    out: Path = Path("out/bench"), resume: bool = False, style: Style | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Measure `task` (bfcl | snips) on its first `limit` records, `batch` of them decoded together.

    data: JSONL file (bfcl; None = the installed package) or folder (snips); style None is the task's own. Rows go to
    `out`/<task>-<key>.jsonl as they come: with `resume` an interrupted run of the same model, records, settings and machine
    goes on where it stopped, without it the file starts over.
    """
    require(isinstance(batch, int) and batch >= 1, "batch", batch, "an integer >= 1")
    chosen = _load(task, data, style)
    items = chosen.first(limit)
    compared = arms.parse(settings)
    console = console or Console(stderr=True)
    found = card(engine)
    key = _key(found, chosen, items, compared, batch)
    log = RowLog(out / f"{task}-{_digest(key)[:12]}.jsonl", key, resume=resume)
    tables.opening(console, chosen, len(items), found)
    _measure(engine, chosen, items, (*compared, TWIN), batch, log, console)
    result = summary.summarise(chosen, items, compared, log.rows)
    result |= {"card": found, "rows_file": str(log.path), "batch": batch, "style": chosen.style}
    tables.closing(console, result)
    return result


def _load(task: str, data: Path | None, style: Style | None) -> Task:
    load = TASKS.load(task)
    if data is None and task != "bfcl":
        raise UsageError(f"task {task} needs its data", hint="give the folder with --data")
    loaded: Task = load(data, style=style) if style else load(data)
    return loaded


def _measure(
    engine: Engine, task: Task, items: Sequence[Item], settings: Sequence[Setting], batch: int, log: RowLog, console: Console
) -> None:
    chunks = [items[at : at + batch] for at in range(0, len(items), batch)]
    todo = [(index, chunk) for index, chunk in enumerate(chunks) if _open(log, chunk, settings)]
    if todo:
        for setting in (GREEDY, max(settings, key=lambda s: s.width)):
            arms.run_chunk(engine, task, setting, items[:1])
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(task.name, total=len(items) * len(settings), completed=len(log.rows))
        for index, chunk in todo:
            for setting in _rotated(settings, index):
                if _open(log, chunk, [setting]):
                    progress.update(bar, description=f"{task.name}: {setting.name}")
                    log.add(arms.run_chunk(engine, task, setting, chunk))
                    progress.advance(bar, len(chunk))


def _open(log: RowLog, chunk: Sequence[Item], settings: Sequence[Setting]) -> bool:
    return any((item.id, setting.name) not in log.rows for item in chunk for setting in settings)


def _rotated(settings: Sequence[Setting], index: int) -> Iterator[Setting]:
    for place in range(len(settings)):
        yield settings[(place + index) % len(settings)]


def _key(found: dict[str, Any], task: Task, items: Sequence[Item], settings: Sequence[Setting], batch: int) -> dict[str, Any]:
    """What must be equal for rows of two runs to be one measurement."""
    return {
        "task": task.name,
        "records": len(items),
        "prompts": _digest([(item.id, item.prompt, item.schema) for item in items]),
        "settings": [setting.name for setting in settings],
        "max_tokens": task.max_tokens,
        "batch": batch,
        "style": task.style,
        "card": found,
    }


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
