"""Plot: acceptance by depth as a small SVG, without a plotting library.

In: named series of shares.   Out: a file.
Knows nothing about: what accepted what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 520, 320, 56, 40, 24
COLOURS = ("#9aa0a6", "#1a73e8", "#188038", "#d93025")


def draw_acceptance(path: Path, series: Mapping[str, Sequence[float]]) -> None:
    """One line a series: the share of guesses accepted at depth 1, 2 .. among those whose path was accepted so far."""
    depths = max(map(len, series.values()))

    def x(depth: float) -> float:
        return LEFT + (WIDTH - LEFT - 16) * (depth - 1) / max(1, depths - 1)

    def y(share: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * share

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">']
    parts.append(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>')
    for tenth in range(0, 11, 2):
        level = y(tenth / 10)
        parts.append(f'<line x1="{LEFT}" y1="{level:.1f}" x2="{WIDTH - 16}" y2="{level:.1f}" stroke="#e0e0e0"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{level + 4:.1f}" text-anchor="end">{tenth / 10:.1f}</text>')
    for depth in range(1, depths + 1):
        parts.append(f'<text x="{x(depth):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{depth}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 6}" text-anchor="middle">depth of the guess</text>')
    parts.append(f'<text x="{LEFT - 40}" y="14">accepted, held-out replies</text>')
    for place, (name, shares) in enumerate(series.items()):
        colour = COLOURS[place % len(COLOURS)]
        points = " ".join(f"{x(depth):.1f},{y(share):.1f}" for depth, share in enumerate(shares, 1))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x(d):.1f}" cy="{y(share):.1f}" r="3" fill="{colour}"/>' for d, share in enumerate(shares, 1)]
        parts.append(f'<text x="{WIDTH - 150}" y="{TOP + 16 * place}" fill="{colour}">{escape(name)}</text>')
    path.write_text("\n".join([*parts, "</svg>", ""]), encoding="utf-8")
