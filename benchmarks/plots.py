"""Plots as SVG text: bars of each library against Aster, and the ratios of all random cases.

Written by hand because that is all it takes: rectangles, lines and text. A plotting library would
be a large thing to install for it, and its files would differ from version to version.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from benchmarks.report import libraries_of, number
from benchmarks.results import Data, ratio_among

COLORS = {
    "aster": "#1f3a93",
    "torch": "#ee6c4d",
    "compile": "#9d4edd",
    "jax": "#2a9d8f",
    "numpy": "#e9c46a",
    "onnxruntime": "#7f5539",
    "llama.cpp": "#588157",
    "before": "#5c677d",
    "tinygrad": "#8d99ae",
}
WIDTH, NAMES, BAR, GAP, TOP = 1040, 520, 9, 10, 46
# Ratios beyond these are drawn at the edge, with their number.
LEAST, MOST = 0.05, 4.0
STYLE = "font-family='sans-serif' font-size='11'"


def plot_name(subject: str) -> str:
    """The file of a subject's plot."""
    return subject.replace(" ", "-").lower() + ".svg"


def place(ratio: float) -> float:
    """The horizontal position of a ratio, on a logarithmic scale."""
    inside = min(max(ratio, LEAST), MOST)
    part = math.log(inside / LEAST) / math.log(MOST / LEAST)
    return NAMES + part * (WIDTH - NAMES - 60)


def text_at(x: float, y: float, words: str, more: str = "") -> str:
    """Words in the plot."""
    return f"<text x='{x:.1f}' y='{y:.1f}' {STYLE} {more}>{html.escape(words)}</text>"


def line_at(x: float, top: float, bottom: float, color: str) -> str:
    """A vertical line."""
    return f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{top}' y2='{bottom}' stroke='{color}'/>"


def scale(bottom: float) -> list[str]:
    """Lines and numbers of the scale."""
    parts = []
    for ratio in (0.1, 0.25, 0.5, 1, 2, 4):
        parts.append(line_at(place(ratio), TOP - 6, bottom, "#444" if ratio == 1 else "#ddd"))
        parts.append(text_at(place(ratio), TOP - 10, f"{ratio:g}", "text-anchor='middle'"))
    return parts


def legend(names: Sequence[str]) -> list[str]:
    """Which color is which library."""
    parts, x = [], 10.0
    for name in names:
        parts.append(f"<rect x='{x:.0f}' y='8' width='10' height='10' fill='{COLORS[name]}'/>")
        parts.append(text_at(x + 14, 17, name))
        x += 28 + 7 * len(name)
    return parts


def document(height: float, parts: Sequence[str]) -> str:
    """A whole file."""
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height:.0f}'>"
    back = f"<rect width='{WIDTH}' height='{height:.0f}' fill='white'/>"
    return "\n".join([head, back, *parts, "</svg>"]) + "\n"


def bars(rows: Sequence[Data]) -> str:
    """Each library's median against Aster's, row by row."""
    peers = [n for n in libraries_of(rows) if n != "aster"]
    parts: list[str] = []
    y = float(TOP)
    for row in rows:
        ratios = {n: ratio_among(row, [n], "median") for n in peers}
        known = {n: 1 / r for n, r in ratios.items() if r}
        if not known:
            continue
        height = BAR * len(known)
        ours = number(row["libraries"]["aster"]["median"])
        label = f"{row['name'][:70]} ({row['threads']}t): {ours} {row['unit']}"
        parts.append(text_at(NAMES - 6, y + height / 2 + 4, label, "text-anchor='end'"))
        for name, ratio in known.items():
            left, right = sorted((place(1.0), place(ratio)))
            parts.append(
                f"<rect x='{left:.1f}' y='{y:.1f}' width='{max(right - left, 1):.1f}' "
                f"height='{BAR - 1}' fill='{COLORS[name]}'/>"
            )
            if ratio != min(max(ratio, LEAST), MOST):
                parts.append(text_at(place(ratio) + 4, y + BAR - 1, f"{ratio:.2g}"))
            y += BAR
        y += GAP
    return document(y + 6, [*legend(peers), *scale(y), *parts])


def ratio_dots(rows: Sequence[Data]) -> str:
    """The ratio of every random case to its best peer, each set sorted in a line of its own."""
    parts: list[str] = []
    y = float(TOP)
    groups: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if row["ratio_median"] is not None:
            found = groups.setdefault((row["drawn"], row["threads"]), [])
            found.append(row["ratio_median"])
    for (name, threads), ratios in groups.items():
        parts.append(text_at(NAMES - 6, y + 12, f"{name} ({threads}t)", "text-anchor='end'"))
        for i, ratio in enumerate(sorted(ratios)):
            # Spread over the height of the line, so that equal ones are seen apart.
            height = y + 4 + 12 * (i % 4) / 3
            color = COLORS["aster"] if ratio >= 1 else COLORS["torch"]
            parts.append(
                f"<circle cx='{place(ratio):.1f}' cy='{height:.1f}' r='3' fill='{color}' "
                "fill-opacity='0.6'/>"
            )
        y += 26
    return document(y + 6, [*scale(y), *parts])


def all_plots(data: Data) -> dict[str, str]:
    """File name -> SVG, one for each subject that has peers, one for the random cases."""
    found = {}
    plain = [r for r in data["rows"] if not r.get("drawn")]
    for subject in dict.fromkeys(r["subject"] for r in plain):
        rows = [r for r in plain if r["subject"] == subject and r["ratio_median"] is not None]
        if rows:
            found[plot_name(subject)] = bars(rows)
    drawn = [r for r in data["rows"] if r.get("drawn") and r["ratio_median"] is not None]
    if drawn:
        found[plot_name("random cases")] = ratio_dots(drawn)
    return found
