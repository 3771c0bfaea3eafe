"""Losses as a picture: an SVG of a line and its axes.

Receives numbers; returns text. Nothing here knows what they are losses of.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 36, 40
MOST_POINTS = 2000
# Losses of a step are noisy: the line is a mean over about a thirtieth of the way.
SHARE = 30


def ticks_between(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between two."""
    span = high - low or 1.0
    rough = span / count
    power = 10 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    first = math.ceil(low / step)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def smooth(values: Sequence[float]) -> list[float]:
    """Running means, over at most a share of all."""
    weight = min(1.0, SHARE / max(1, len(values)))
    result: list[float] = []
    for i, value in enumerate(values):
        before = result[-1] if result else value
        result.append(before + (value - before) * max(weight, 1 / (i + 1)))
    return result


def draw_losses(losses: Sequence[float], title: str) -> str:
    """The picture: each loss as a dot, and their running mean."""
    finite = [x for x in losses if math.isfinite(x)] or [0.0]
    low, high = min(0.0, *finite), max(finite)
    high = high if high > low else low + 1
    count = max(1, len(losses) - 1)

    def x_of(i: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * i / count

    def y_of(loss: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-size="14">{html.escape(title)}</text>',
    ]
    for loss in ticks_between(low, high):
        y = y_of(loss)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{loss:g}</text>')
    for i in ticks_between(0, count):
        if i == int(i):
            parts.append(
                f'<text x="{x_of(i):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">'
                f"{int(i) + 1}</text>"
            )
    stride = -(-len(losses) // MOST_POINTS) or 1
    kept = [i for i in range(0, len(losses), stride) if math.isfinite(losses[i])]
    parts += [
        f'<circle cx="{x_of(i):.1f}" cy="{y_of(losses[i]):.1f}" r="2" fill="#9bc"/>' for i in kept
    ]
    means = smooth([losses[i] for i in kept])
    points = " ".join([f"{x_of(i):.1f},{y_of(mean):.1f}" for i, mean in zip(kept, means)])
    parts.append(f'<polyline points="{points}" fill="none" stroke="#146" stroke-width="2"/>')
    parts.append(
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">step</text>\n</svg>\n'
    )
    return "\n".join(parts)
