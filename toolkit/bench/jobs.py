"""Jobs: records per second at several numbers in flight, what the job layer itself costs, whether cost and memory stay in proportion.

    throughput   the same records of spoken orders on the given engine, at each number in flight
    overhead     a null engine: all that is left is the job layer (reading, prompt, validation, spans, lines on the disk)
    linearity    10, 100, ... records on the tiny engine: seconds a record
    memory       a null engine, many records: how much the process grew while they ran

In: an engine.   Out: JSON (a figure for each part, verdict), tables.
Invariants: no throughput is given, and the verdict is HOLD, unless every arm made the same records valid, with the same value for at
least SAME_SHARE of them as one at a time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

from rich.console import Console
from rich.table import Table

from toolkit.bench.null_engine import SCHEMA as NULL_SCHEMA
from toolkit.bench.null_engine import NullEngine
from toolkit.contracts import Engine, Json
from toolkit.engine.card import card, line
from toolkit.engine.engine import open_engine
from toolkit.errors import UnsupportedError
from toolkit.jobs.run import prepare, run_job
from toolkit.jobs.spec import make_spec
from toolkit.jobs.summary import Summary

SAME_SHARE = 0.96
Part = Literal["throughput", "overhead", "linearity", "memory"]
PARTS: tuple[Part, ...] = get_args(Part)
STATM = Path("/proc/self/statm")
PAGE_MIB = 4096 / (1 << 20)
NAMES = ("Mia Chen", "Tom Okafor", "Ana Silva", "Lev Marin", "Sara Lind", "Ravi Rao", "Eva Novak", "Jon Berg")
THINGS = ("lamp", "chair", "desk", "shelf", "mirror", "clock")
COLOURS = ("red", "green", "white", "black", "brown")
SCHEMA: Json = {
    "type": "object",
    "properties": {
        "customer": {"type": "string", "maxLength": 24},
        "item": {"enum": list(THINGS)},
        "colour": {"enum": list(COLOURS)},
        "quantity": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["customer", "item", "colour", "quantity"],
    "additionalProperties": False,
}


def order(number: int) -> tuple[str, Json]:
    """The text of order `number`, and what it says."""
    who, what, colour = NAMES[number % 8], THINGS[number * 5 % 6], COLOURS[number * 3 % 5]
    count = 2 + number * 7 % 40
    text = f"Hello, this is {who}. Please send me {count} {colour} {what}s, order {number}."
    return text, {"customer": who, "item": what, "colour": colour, "quantity": count}


def run(
    engine: Engine, *, parts: Sequence[Part] = PARTS, records: int = 48, in_flight: Sequence[int] = (1, 4, 16), width: int = 4,
    most: int = 10_000, many: int = 100_000, console: Console | None = None,
) -> dict[str, Any]:  # fmt: skip
    """`records` for throughput, up to `most` for linearity, `many` for memory and a fiftieth of that for overhead."""
    console = console or Console(stderr=True)
    measures: Mapping[str, Callable[[Path], dict[str, Any]]] = {
        "throughput": lambda folder: _throughput(engine, folder, records, in_flight, width),
        "overhead": lambda folder: _overhead(folder, max(1, many // 50)),
        "linearity": lambda folder: _linearity(folder, most),
        "memory": lambda folder: _memory(folder, many),
    }
    result: dict[str, Any] = {"card": card(engine)}
    for part in parts:
        with TemporaryDirectory() as folder:
            result[part] = measures[part](Path(folder))
        _show(console, part, result[part])
    console.print(line(result["card"]))
    why = result.get("throughput", {}).get("reasons", [])
    return {"verdict": "HOLD" if why else "PASS", "reasons": why, **result}


def _job(folder: Path, name: str, count: int, spec: Mapping[str, Json], engine: Engine, **how: Any) -> tuple[Summary, float]:
    """The summary and the seconds of the records themselves."""
    place = folder / f"{name}.jsonl"
    with place.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"id": f"o{i}", "text": order(i)[0]}) + "\n" for i in range(count))
    summary = run_job(prepare(place, make_spec(spec)), folder / name, engine, **how)
    return summary, summary.elapsed_s


def _values(path: Path) -> dict[str, Json]:
    return {each["id"]: each["value"] for each in map(json.loads, path.read_text(encoding="utf-8").splitlines())}


def _throughput(engine: Engine, folder: Path, records: int, in_flight: Sequence[int], width: int) -> dict[str, Any]:
    examples = [{"text": text, "value": value} for text, value in map(order, (101, 202, 303))]
    spec = {"schema": SCHEMA, "examples": examples, "width": width, "alpha": 0.0, "max_tokens": 64}
    _job(folder, "warm", min(2, records), spec, engine)
    arms, found = [], []
    for number in dict.fromkeys((1, *in_flight)):
        summary, seconds = _job(folder, f"at{number}", records, spec, engine, in_flight=number)
        found.append(_values(folder / f"at{number}"))
        arms.append(
            {
                "in_flight": number,
                "records_per_s": records / seconds,
                "valid": summary.valid,
                "same": _same(found[0], found[-1]),
            }
        )
    right = sum(value == order(int(name[1:]))[1] for name, value in found[0].items())
    reasons = [
        f"{arm['in_flight']} in flight: {arm['valid']} valid, {arm['same']} values as one at a time, of {records}"
        for arm in arms
        if not arm["valid"] or arm["valid"] != arms[0]["valid"] or arm["same"] < SAME_SHARE * arms[0]["valid"]
    ]
    return {"records": records, "width": width, "right": right, "arms": [] if reasons else arms, "reasons": reasons}


def _same(one: Mapping[str, Json], other: Mapping[str, Json]) -> int:
    return sum(name in other and other[name] == value for name, value in one.items())


def _overhead(folder: Path, count: int) -> dict[str, Any]:
    spec = {"schema": NULL_SCHEMA}
    _job(folder, "warm", 50, spec, NullEngine())
    cpu = time.process_time()
    _, seconds = _job(folder, "null", count, spec, NullEngine())
    return {
        "records": count,
        "ms_per_record": 1e3 * seconds / count,
        "cpu_ms_per_record": 1e3 * (time.process_time() - cpu) / count,
    }


def _linearity(folder: Path, most: int) -> dict[str, Any]:
    engine = open_engine("embedded", model="tiny", threads=1)
    spec = {"schema": {"enum": ["yes", "no"]}, "system": "", "width": 2, "max_tokens": 8, "ground": "off"}
    rows = []
    try:
        _job(folder, "warm", 5, spec, engine)
        count = 10
        while count <= most:
            _, seconds = _job(folder, f"n{count}", count, spec, engine)
            rows.append({"records": count, "seconds": seconds, "ms_per_record": 1e3 * seconds / count})
            count *= 10
    finally:
        engine.close()
    return {"rows": rows}


def _memory(folder: Path, count: int) -> dict[str, Any]:
    spec = {"schema": NULL_SCHEMA}
    _job(folder, "warm", 200, spec, NullEngine())
    before = peak = _resident_mib()

    def look(done: int, total: int | None, failed: int) -> None:
        nonlocal peak
        if done % 500 == 0:
            peak = max(peak, _resident_mib())

    _job(folder, "many", count, spec, NullEngine(), on_progress=look)
    return {"records": count, "grown_mib": peak - before}


def _resident_mib() -> float:
    """Memory that this process holds; UnsupportedError where the system does not tell (it has no /proc)."""
    if not STATM.exists():
        raise UnsupportedError(
            f"the memory of a process is read from {STATM}, which is not there", hint="leave out --part memory"
        )
    return int(STATM.read_text().split()[1]) * PAGE_MIB


def _show(console: Console, part: str, found: Mapping[str, Any]) -> None:
    for why in found.get("reasons", ()):
        console.print(f"[red]HOLD[/red] {why}")
    rows = (
        found.get("arms")
        or found.get("rows")
        or [{name: value for name, value in found.items() if not isinstance(value, list)}]
    )
    table = Table(*rows[0], title=part, title_justify="left")
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    console.print(table)
