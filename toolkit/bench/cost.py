"""Cost: what a pass and a step of a beam search take, against the length before them, the rows in them and the beam's width.

In: an embedded engine.   Out: JSON (arms of points with quartiles, ratios, ceiling, verdict), a table, pictures on request.
Knows nothing about: kernels.
Invariants: no figure is given unless every row of the measured passes gave the logits that it gives alone: bitwise in a native format,
within TOLERANCE in torch. Ceiling: bytes of weights, and of the keys and values that are read, over the measured bandwidth.
Method: all points in turn, `rounds` times (passes REPEATS times a turn), an untimed turn first; the figure is the median. A prompt is computed in passes of CHUNK
rows. Rows are one token each of sequences that share AT tokens; a beam is over AT tokens too, under a regular expression.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from toolkit.bench.accounting import model_of
from toolkit.bench.bandwidth import read_bandwidth
from toolkit.bench.curves import Point, chart
from toolkit.bench.formats import documentation
from toolkit.bench.stats import quantile
from toolkit.contracts import require
from toolkit.engine.card import card, line
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.forward import Feed, Forward
from toolkit.engine.sequence import Sequence as Line
from toolkit.model.native.decoder import NativeDecoder

ROWS, WIDTHS = (1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16)
SHORTEST, AT, BLOCK, CHUNK = 64, 256, 16, 512  # tokens
LETTERS, STEPS = "[ a-z]{60}", 61  # a text that no width ends early, and the most tokens it can take
TOLERANCE = 1e-3
REPEATS = 3  # of passes in a turn
AXES = {
    "prompt": ("a prompt, computed whole", "tokens of the prompt", "ms per token"),
    "length": ("one row behind a context", "tokens in the context", "ms per pass"),
    "rows": (f"sequences together, {AT} tokens before each", "rows in the pass", "ms per pass"),
    "width": (f"beam search, {AT} tokens before it", "beam width", "ms per step"),
}
Samples = dict[str, dict[int, list[float]]]


def run(engine: EmbeddedEngine, *, longest: int = 4096, rounds: int = 5, console: Console | None = None) -> dict[str, Any]:
    """Measure. UsageError for a length beyond the model's context."""
    console = console or Console(stderr=True)
    most = engine.capabilities.context - 1
    require(2 * AT <= longest <= most, "longest", longest, f"{2 * AT} to {most}, the model's context less one")
    bench = _Bench(engine, longest)
    found: Samples = defaultdict(lambda: defaultdict(list))
    for turn in track(range(rounds + 1), "cost", console=console, transient=True):
        for arm, at, seconds in bench.turn():
            if turn:
                found[arm][at].append(seconds)
    result = bench.judged(found) | {"card": card(engine), "format": engine.format, "rounds": rounds}
    _show(console, result)
    return result


class _Bench:
    """The model, its text, and every measured point."""

    def __init__(self, engine: EmbeddedEngine, longest: int) -> None:
        self.engine = engine
        self.decoder, _ = engine.parts
        ids = engine.tokenizer.encode(documentation())
        self.text = list(islice(cycle(ids), longest + max(ROWS)))
        self.lengths = [SHORTEST << i for i in range(32) if SHORTEST << i <= longest]
        self.forward = Forward(
            self.decoder, vocab_size=engine.capabilities.vocab_size, kv_blocks=longest // BLOCK + 4 * max(ROWS), block_size=BLOCK,
            device=self.decoder.device, prefix_cache=False,
        )  # fmt: skip
        self.gap = 0.0  # largest difference of a row's logits alone and together

    def turn(self) -> Iterator[tuple[str, int, float]]:
        """(arm, size, seconds) of every point, once."""
        whole = Line(self.text[: self.lengths[-1]], self.forward.table())
        spent = 0.0
        while whole.pending:
            step = min([CHUNK, *(n - whole.computed for n in self.lengths if n > whole.computed)])
            spent += _timed(lambda step=step: self.forward([Feed(whole, step, 1)]))  # type: ignore[misc]
            if whole.computed in self.lengths:
                yield "prompt", whole.computed, spent / whole.computed
        for _ in range(REPEATS):
            for length in self.lengths:
                yield "length", length, self._rows(whole, length, 1)
            for rows in ROWS:
                yield "rows", rows, self._rows(whole, AT, rows)
        whole.release()
        for width in WIDTHS:
            yield "width", width, self._beam(width)

    def _rows(self, whole: Line, length: int, rows: int) -> float:
        """One pass over a row of each of some sequences that share `length` tokens; each is then checked against itself alone."""
        lines = []
        for row in range(rows):
            table = whole.table.fork()
            table.truncate(length)
            lines.append(Line(self.text[:length], table))
            lines[-1].advance([self.text[length + row]])
        together: list[torch.Tensor] = []
        seconds = _timed(lambda: together.extend(self.forward([Feed(one, 1, 1) for one in lines])))
        for one, logits in zip(lines[:: max(1, rows // 2)], together[:: max(1, rows // 2)], strict=True):
            one.table.truncate(length)
            self.gap = max(self.gap, float((self.forward([Feed(one, 1, 1)])[0] - logits).abs().max()))
        for one in lines:
            one.release()
        return seconds

    def _beam(self, width: int) -> float:
        """Seconds of one step: the time after the first one over the passes after the first."""
        found = self.engine.beam(self.text[:AT], regex=LETTERS, width=width, alpha=0.0, max_tokens=STEPS)
        return (found.timing.e2e_s - found.timing.ttft_s) / max(1, found.usage.passes - 1)

    def judged(self, found: Samples) -> dict[str, Any]:
        """Verdict first; figures only after a PASS."""
        allowed = 0.0 if isinstance(self.decoder, NativeDecoder) else TOLERANCE
        if self.gap > allowed:
            why = f"a row's logits differ by {self.gap:.3g} alone and together, allowed is {allowed}"
            return {"bench": "cost", "verdict": "HOLD", "reasons": [why], "arms": [], "ratios": {}, "ceiling": {}}
        arms = {name: [_point(at, seconds) for at, seconds in points.items()] for name, points in found.items()}
        ceiling = self._ceiling()
        middle = {name: {point.at: point.median for point in points} for name, points in arms.items()}
        ratios = {f"rows{n}_vs_1": middle["rows"][n] / middle["rows"][1] for n in ROWS[1:]}
        ratios |= {f"beam{n}_vs_1": middle["width"][n] / middle["width"][1] for n in WIDTHS[1:]}
        ratios |= {
            f"length{n}_vs_{SHORTEST}": middle["length"][n] / middle["length"][SHORTEST] for n in self.lengths[1:]
        } | {"pass_vs_ceiling": middle["rows"][1] / _least(ceiling, AT, 1)}  # fmt: skip
        return {
            "bench": "cost", "verdict": "PASS", "reasons": [], "ratios": ratios, "ceiling": ceiling,
            "arms": [{"name": name, "unit": AXES[name][2], "points": [p._asdict() for p in points]} for name, points in arms.items()],
        }  # fmt: skip

    def _ceiling(self) -> dict[str, float]:
        model = model_of(self.engine)
        assert model is not None  # it runs here
        return {
            "read_bytes_s": read_bandwidth(model.weight_bytes), "weight_bytes": float(model.weight_bytes), "kv_bytes_token": float(model.kv_bytes),
        }  # fmt: skip


def _least(ceiling: dict[str, float], before: int, rows: int) -> float:
    """Milliseconds for reading the weights once, and every row's keys and values."""
    return 1e3 * (ceiling["weight_bytes"] + rows * before * ceiling["kv_bytes_token"]) / ceiling["read_bytes_s"]


def pictures(result: dict[str, Any]) -> dict[str, str]:
    """SVG by file name; none without figures."""
    found = {}
    for arm in result["arms"]:
        points = [Point(**each) for each in arm["points"]]
        title, below, side = AXES[arm["name"]]
        floor = {
            "prompt": [], "length": [(p.at, _least(result["ceiling"], p.at, 1)) for p in points],
        }.get(arm["name"], [(p.at, _least(result["ceiling"], AT, 1)) for p in points])  # fmt: skip
        ceiling = {"weights and one row's keys and values over the bandwidth": floor} if floor else {}
        found[f"cost-{arm['name']}.svg"] = chart(title, below, side, {f"{result['format']}": points}, ceiling)
    return found


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _point(at: int, seconds: Sequence[float]) -> Point:
    """In milliseconds."""
    return Point(at, *(1e3 * each for each in (median(seconds), quantile(seconds, 0.25), quantile(seconds, 0.75))))


def _show(console: Console, result: dict[str, Any]) -> None:
    for arm in result["arms"]:
        table = Table(AXES[arm["name"]][1], arm["unit"], "quartiles", title=AXES[arm["name"]][0])
        for point in arm["points"]:
            table.add_row(str(point["at"]), f"{point['median']:.2f}", f"{point['q1']:.2f}-{point['q3']:.2f}")
        console.print(table)
    for name, value in result["ratios"].items():
        console.print(f"{name}: {value:.2f}")
    for reason in result["reasons"]:
        console.print(f"HOLD: {reason}")
    console.print(line(result["card"]), markup=False)
