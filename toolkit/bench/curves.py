"""Curves: one figure of costs over sizes, as a picture of its own (SVG).

In: series of points with quartiles, a ceiling.   Out: SVG text.
Knows nothing about: what was measured.
Sizes are powers of two or close to them: the axis below is logarithmic, the one at the side starts at zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 44, 52
_COLOURS = ("#0969da", "#bf8700", "#8250df", "#1a7f37")
_TICKS = 5


class Point(NamedTuple):
    """A figure at a size: median, first and third quartile."""

    at: int
    median: float
    q1: float
    q3: float


def chart(
    title: str, below: str, side: str, series: Mapping[str, Sequence[Point]], ceiling: Mapping[str, Sequence[tuple[int, float]]]
) -> str:
    """Points joined by lines, quartiles as bars; the ceiling dashed. `below` and `side` name the axes."""
    sizes = sorted({point.at for points in series.values() for point in points})
    most = _round_up(
        max([p.q3 for points in series.values() for p in points] + [y for line in ceiling.values() for _, y in line])
    )
    axes = _Axes(sizes, most)
    body = axes.draw(below, side)
    rows: list[tuple[str, str, str]] = []
    for (name, points), colour in zip(series.items(), _COLOURS, strict=False):
        body.append(_line([(axes.x(p.at), axes.y(p.median)) for p in points], colour))
        for p in points:
            x = axes.x(p.at)
            body.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{axes.y(p.q1):.1f}" y2="{axes.y(p.q3):.1f}" stroke="{colour}" stroke-width="5" opacity="0.35"/>'
            )
            body.append(f'<circle cx="{x:.1f}" cy="{axes.y(p.median):.1f}" r="3.5" fill="{colour}"/>')
        rows.append((name, colour, ""))
    for name, line in ceiling.items():
        body.append(_line([(axes.x(at), axes.y(y)) for at, y in line], "#cf222e", "6 4"))
        rows.append((name, "#cf222e", "6 4"))
    for place, (name, colour, dashes) in enumerate(rows):
        y = _TOP + 14 + 18 * place
        body.append(_line([(_LEFT + 14, y), (_LEFT + 40, y)], colour, dashes) + _text(_LEFT + 46, y + 4, name, "start"))
    body.append(f'<text x="{WIDTH / 2}" y="22" font-size="15" font-weight="bold" text-anchor="middle">{escape(title)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="sans-serif" fill="#1f2328" role="img" aria-label="{escape(title, quote=True)}">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>{"".join(body)}</svg>\n'
    )


class _Axes:
    """Where a size and a figure lie."""

    def __init__(self, sizes: Sequence[int], most: float) -> None:
        self.sizes, self.most = sizes, most
        self._low, self._high = math.log2(sizes[0]), math.log2(max(sizes[-1], 2 * sizes[0]))

    def x(self, at: int) -> float:
        return _LEFT + 12 + (math.log2(at) - self._low) / (self._high - self._low) * (WIDTH - _LEFT - _RIGHT - 24)

    def y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - value / self.most * (HEIGHT - _BOTTOM - _TOP)

    def draw(self, below: str, side: str) -> list[str]:
        body = []
        for tick in range(_TICKS + 1):
            value = self.most * tick / _TICKS
            y = self.y(value)
            body.append(f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#d1d9e0"/>')
            body.append(_text(_LEFT - 8, y + 4, f"{value:.3g}", "end"))
        body += [_text(self.x(size), HEIGHT - _BOTTOM + 18, str(size)) for size in self.sizes]
        body.append(_text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 12, below))
        middle = (_TOP + HEIGHT - _BOTTOM) / 2
        body.append(
            f'<text x="16" y="{middle}" font-size="12" text-anchor="middle" transform="rotate(-90 16 {middle})">{escape(side)}</text>'
        )
        return body


def _round_up(value: float) -> float:
    """The next figure that five ticks divide well."""
    step = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(step * factor for factor in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * factor >= value)


def _line(spots: Sequence[tuple[float, float]], colour: str, dashes: str = "") -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>'


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" text-anchor="{anchor}">{escape(text)}</text>'
