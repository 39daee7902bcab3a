"""Plots: small inline SVG figures - bars of shares, a curve that falls in steps, points of two series.

In: numbers.   Out: an SVG element in a figure with a caption.
Knows nothing about: what the numbers are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 640, 180
_LEFT, _BOTTOM, _TOP = 48, 22, 10
_COLOURS = ("#57606a", "#0969da", "#bf8700")


def bars(title: str, shares: Sequence[float]) -> str:
    """One bar a share of 0 to 1, its number above it."""
    wide = (WIDTH - _LEFT) / max(1, len(shares))
    body = [_axis(1.0, "{:.0%}")]
    for place, share in enumerate(shares):
        x, y = _LEFT + place * wide, _height(share, 1.0)
        body.append(
            f'<rect x="{x + 3:.1f}" y="{y:.1f}" width="{max(1.0, wide - 6):.1f}" height="{HEIGHT - _BOTTOM - y:.1f}" fill="{_COLOURS[1]}"/>'
        )
        body.append(_text(x + wide / 2, HEIGHT - 6, str(place + 1)) + _text(x + wide / 2, max(_TOP, y - 3), f"{share:.2f}"))
    return _figure(title, body)


def steps(title: str, places: Sequence[int], texts: int, length: int = 1) -> str:
    """The share of `texts` that no place has ended yet, over the places; the longest text has `length` of them."""
    last = max(length, max(places, default=0) + 1)
    line, left = [(0, 1.0)], texts
    for place in sorted(places):
        line.append((place, left / max(1, texts)))
        left -= 1
        line.append((place, left / max(1, texts)))
    line.append((last, left / max(1, texts)))
    spots = " ".join(f"{_LEFT + x / last * (WIDTH - _LEFT - 8):.1f},{_height(y, 1.0):.1f}" for x, y in line)
    body = [
        _axis(1.0, "{:.0%}"),
        f'<polyline points="{spots}" fill="none" stroke="{_COLOURS[1]}" stroke-width="2"/>',
        _text(WIDTH - 20, HEIGHT - 6, str(last)),
    ]
    return _figure(title, body)


def points(title: str, series: Mapping[str, Sequence[float]]) -> str:
    """A point a value, a colour a series."""
    most = max((value for values in series.values() for value in values), default=0.0) or 1.0
    body = [_axis(most, "{:.3g}")]
    for (name, values), colour, row in zip(series.items(), _COLOURS, range(9), strict=False):
        for place, value in enumerate(values):
            x = _LEFT + (place + 0.5) * (WIDTH - _LEFT - 120) / max(1, len(values))
            body.append(f'<circle cx="{x:.1f}" cy="{_height(value, most):.1f}" r="4" fill="{colour}"/>')
        body.append(f'<circle cx="{WIDTH - 110}" cy="{_TOP + 8 + 18 * row}" r="4" fill="{colour}"/>')
        body.append(f'<text x="{WIDTH - 100}" y="{_TOP + 12 + 18 * row}" font-size="12">{escape(name)}</text>')
    return _figure(title, body)


def _height(value: float, most: float) -> float:
    return HEIGHT - _BOTTOM - (HEIGHT - _BOTTOM - _TOP - 8) * max(0.0, min(1.0, value / most))


def _axis(most: float, form: str) -> str:
    return "".join(
        f'<line x1="{_LEFT}" x2="{WIDTH}" y1="{_height(most * i / 2, most):.1f}" y2="{_height(most * i / 2, most):.1f}" stroke="#ddd"/>'
        f'<text x="{_LEFT - 6}" y="{_height(most * i / 2, most) + 4:.1f}" font-size="11" text-anchor="end">{form.format(most * i / 2)}</text>'
        for i in range(3)
    )


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="11" text-anchor="middle">{escape(text)}</text>'


def _figure(title: str, body: Sequence[str]) -> str:
    label = escape(title, quote=True)
    return f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(body)}</svg><figcaption>{label}</figcaption></figure>'
