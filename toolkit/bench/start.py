"""Start: how long a new process takes to its first token, and how much memory it holds at most, by number format.

In: a model, formats, repetitions.   Out: JSON (arms, ratios, verdict), a table.
Knows nothing about: how a model is loaded; every figure is that of a whole `toolkit generate` process, seen from outside.
Invariants: nothing is given unless every process of a format wrote the same text. Method: the formats take turns, the first turn
warms the page cache and does not count; memory is the largest resident set that was seen, every SAMPLE_S seconds, pages of mapped
files among it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from statistics import median
from subprocess import DEVNULL, PIPE, Popen
from threading import Thread
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from toolkit.bench.stats import quantile
from toolkit.errors import EngineError, MissingExtraError

FORMATS = ("int8", "float32")
MIB = 1 << 20
SAMPLE_S = 0.01


def run(
    *, model: str = "smollm2", prompt: str = "Hi", tokens: int = 8, rounds: int = 5, console: Console | None = None
) -> dict[str, Any]:
    """Start every format `rounds` times after one that warms up. EngineError where a process fails."""
    console = console or Console(stderr=True)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in FORMATS}
    for turn in track(range(rounds + 1), "starts", console=console, transient=True):
        for name in FORMATS if turn % 2 else FORMATS[::-1]:
            one = started(["generate", prompt, "--model", model, "--format", name, "--max-tokens", str(tokens)])
            if turn:
                found[name].append(one)
    result = _summary(found) | {"model": model, "tokens": tokens, "rounds": rounds}
    _show(console, result)
    return result


def started(arguments: Sequence[str]) -> dict[str, Any]:
    """One process of the command line: seconds to its first byte on stdout and to its end, peak bytes, its text."""
    try:
        import psutil
    except ModuleNotFoundError as error:
        raise MissingExtraError("psutil", "cpu") from error
    began, peak = time.perf_counter(), 0
    process = Popen([sys.executable, "-m", "toolkit", *arguments], stdout=PIPE, stderr=DEVNULL)
    told = Told(process, began)
    told.start()
    watched = psutil.Process(process.pid)
    while process.poll() is None:
        with suppress(psutil.Error):
            peak = max(peak, watched.memory_info().rss)
        time.sleep(SAMPLE_S)
    end_s = time.perf_counter() - began
    told.join()
    if process.returncode:
        said = f"toolkit {' '.join(arguments)} ended with exit code {process.returncode}"
        raise EngineError(said, hint="run it by hand to see why")
    return {"first_s": told.first_s, "e2e_s": end_s, "peak_bytes": peak, "text": told.text}


class Told(Thread):
    """What a process writes on stdout, and when its first byte came."""

    def __init__(self, process: Popen[bytes], began: float) -> None:
        super().__init__(name="toolkit-told", daemon=True)
        self.text, self.first_s = b"", 0.0
        self._process, self._began = process, began

    def run(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as out:
            self.text = os.read(out.fileno(), 1)
            self.first_s = time.perf_counter() - self._began
            self.text += out.read()


def _summary(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    reasons = [
        f"{name}: its processes wrote different texts" for name, each in found.items() if len({one["text"] for one in each}) > 1
    ]
    if reasons:
        return {"verdict": "HOLD", "reasons": reasons, "arms": [], "ratios": {}}
    arms = [
        {"name": name, **{key: spread([one[key] for one in each]) for key in ("first_s", "peak_bytes")}}
        for name, each in found.items()
    ]
    mine, other = (found[name] for name in FORMATS)
    ratios = {
        f"{key}_{FORMATS[0]}_vs_{FORMATS[1]}": spread([a[key] / b[key] for a, b in zip(mine, other, strict=True)])
        for key in ("first_s", "peak_bytes")
    }
    return {"verdict": "PASS", "reasons": [], "arms": arms, "ratios": ratios}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    return {"median": median(values), "q1": quantile(values, 0.25), "q3": quantile(values, 0.75)}


def _show(console: Console, result: dict[str, Any]) -> None:
    table = Table(
        "format", "first token after", "quartiles", "peak memory", title=f"starting toolkit generate, {result['model']}"
    )
    for arm in result["arms"]:
        first = arm["first_s"]
        table.add_row(
            arm["name"],
            f"{first['median']:.2f} s",
            f"{first['q1']:.2f}-{first['q3']:.2f}",
            f"{arm['peak_bytes']['median'] / MIB:.0f} MiB",
        )
    console.print(table)
    for name, each in result["ratios"].items():
        console.print(f"{name}: {each['median']:.2f} ({each['q1']:.2f}-{each['q3']:.2f})")
    for reason in result["reasons"]:
        console.print(f"HOLD: {reason}")
