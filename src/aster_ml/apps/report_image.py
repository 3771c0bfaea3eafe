"""Draws the demo's picture: the loss curve beside a grid of digits and what was read in each.

Takes plain arrays and numbers, writes a PNG with Pillow, and knows nothing of tensors or networks.
Everything is drawn at twice its size and scaled down, which smooths lines and circles.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

WIDTH, HEIGHT, SCALE = 1280, 828, 2
MARGIN, GAP = 48, 44
CURVE_WIDTH = 470
COLUMNS, ROWS = 12, 7
MAX_WRONG = COLUMNS
SMOOTHING = 0.9

PAPER, PANEL, INK, MUTED, FAINT = "#f7f5f0", "#ffffff", "#22252b", "#767b85", "#e4e1da"
ACCENT, ACCENT_LIGHT, WRONG, WRONG_LIGHT = "#2f5d9b", "#b9cbe4", "#c2382e", "#fbe9e7"


class Report(NamedTuple):
    """Contents of the picture: the loss of each step, images [n, 28, 28] with label and reading."""

    title: str
    subtitle: str
    losses: Sequence[float]
    steps_per_epoch: int
    images: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    read: np.ndarray[Any, Any]


class Canvas:
    """A Pillow image in units of one final pixel."""

    def __init__(self) -> None:
        from PIL import Image, ImageDraw, ImageFont

        self.image = Image.new("RGB", (WIDTH * SCALE, HEIGHT * SCALE), PAPER)
        self.draw = ImageDraw.Draw(self.image)
        self.load_font = ImageFont.load_default
        self.image_class = Image

    def text(
        self, x: float, y: float, text: str, size: float, colour: str = INK, anchor: str = "ls"
    ) -> None:
        """Text at a point; the anchor is Pillow's: first letter across, second up and down."""
        font = self.load_font(size=size * SCALE)
        self.draw.text((x * SCALE, y * SCALE), text, fill=colour, font=font, anchor=anchor)

    def line(self, points: Sequence[tuple[float, float]], colour: str, width: float) -> None:
        """A line through points."""
        scaled = [(x * SCALE, y * SCALE) for x, y in points]
        self.draw.line(scaled, fill=colour, width=max(1, round(width * SCALE)), joint="curve")

    def box(
        self,
        corner: tuple[float, float],
        size: tuple[float, float],
        fill: str,
        outline: str | None = None,
        radius: float = 6,
    ) -> None:
        """A rectangle with round corners."""
        (x, y), (w, h) = corner, size
        self.draw.rounded_rectangle(
            (x * SCALE, y * SCALE, (x + w) * SCALE, (y + h) * SCALE),
            radius=radius * SCALE,
            fill=fill,
            outline=outline,
            width=2 * SCALE if outline else 0,
        )

    def digit(self, corner: tuple[float, float], side: float, pixels: np.ndarray[Any, Any]) -> None:
        """An image of a digit, dark ink on the colour that is below it."""
        alpha = self.image_class.fromarray(pixels.astype(np.uint8)).resize(
            (round(side * SCALE), round(side * SCALE)), self.image_class.Resampling.BICUBIC
        )
        ink = self.image_class.new("RGB", alpha.size, INK)
        self.image.paste(ink, (round(corner[0] * SCALE), round(corner[1] * SCALE)), alpha)

    def save(self, path: pathlib.Path) -> None:
        """Scale down and write."""
        small = self.image.resize((WIDTH, HEIGHT), self.image_class.Resampling.LANCZOS)
        small.save(path)


def draw_report(path: pathlib.Path, report: Report) -> None:
    """Draw the whole picture into a PNG file."""
    canvas = Canvas()
    canvas.text(MARGIN, 72, report.title, 34)
    canvas.text(MARGIN, 104, report.subtitle, 17, MUTED)
    draw_curve(canvas, (MARGIN, 136), (CURVE_WIDTH, HEIGHT - 136 - MARGIN), report)
    left = MARGIN + CURVE_WIDTH + GAP
    draw_digits(canvas, (left, 136), (WIDTH - MARGIN - left, HEIGHT - 136 - MARGIN), report)
    canvas.save(path)


def smooth(values: Sequence[float]) -> list[float]:
    """A running mean with exponential weights, corrected for its start."""
    result, mean = [], 0.0
    for i, value in enumerate(values):
        mean = SMOOTHING * mean + (1 - SMOOTHING) * value
        result.append(mean / (1 - SMOOTHING ** (i + 1)))
    return result


def nice_step(span: float, count: int) -> float:
    """A step of 1, 2 or 5 times a power of ten that cuts span into about count parts."""
    rough = max(span, 1e-9) / count
    power = 10.0 ** math.floor(math.log10(rough))
    return next(f * power for f in (1, 2, 5, 10) if f * power >= rough)


def draw_curve(
    canvas: Canvas, corner: tuple[float, float], size: tuple[float, float], report: Report
) -> None:
    """The loss of every step, faint, and its running mean."""
    (x, y), (w, h) = corner, size
    canvas.box(corner, size, PANEL, radius=10)
    canvas.text(x + 24, y + 36, "Training loss", 17)
    left, right, top, bottom = x + 58, x + w - 26, y + 62, y + h - 56
    losses = list(report.losses)
    means = smooth(losses)
    low, high = min([*losses, *means]), max([*losses, *means])
    step = nice_step(high - min(low, 0), 6)
    floor, ceiling = math.floor(low / step) * step, math.ceil(high / step) * step
    ceiling = ceiling if ceiling > floor else floor + step
    across = (right - left) / max(len(losses) - 1, 1)

    def place(i: float, value: float) -> tuple[float, float]:
        return left + i * across, bottom - (value - floor) / (ceiling - floor) * (bottom - top)

    for i in range(round((ceiling - floor) / step) + 1):
        value = floor + i * step
        height = place(0, value)[1]
        canvas.line([(left, height), (right, height)], FAINT, 1)
        decimals = max(0, -math.floor(math.log10(step)))
        canvas.text(left - 10, height, f"{value:.{decimals}f}", 13, MUTED, "rm")
    epochs = len(losses) / report.steps_per_epoch
    each = max(1, round(nice_step(epochs, 6)))
    for epoch in range(0, math.floor(epochs) + 1, each):
        at = min(epoch * report.steps_per_epoch, len(losses) - 1)
        canvas.text(left + at * across, bottom + 20, str(epoch), 13, MUTED, "mm")
    canvas.text((left + right) / 2, bottom + 42, "epoch", 13, MUTED, "mm")
    if len(losses) > 1:
        canvas.line([place(i, value) for i, value in enumerate(losses)], ACCENT_LIGHT, 1)
        canvas.line([place(i, value) for i, value in enumerate(means)], ACCENT, 2.5)
    canvas.text(right, top - 12, "each step", 13, ACCENT_LIGHT, "rs")
    canvas.text(right - 78, top - 12, "mean", 13, ACCENT, "rs")


def draw_digits(
    canvas: Canvas, corner: tuple[float, float], size: tuple[float, float], report: Report
) -> None:
    """Rows of digits as they come, then those that were misread."""
    (x, y), (w, h) = corner, size
    cell_w, gap = w / COLUMNS, 6.0
    cell_h = cell_w + 24
    canvas.text(x, y + 14, "What it read in digits it had never seen", 17)
    top = y + 32
    rows = max(1, min(ROWS, int((h - 32 - 52 - cell_h) // cell_h)))
    for i in range(min(rows * COLUMNS, len(report.images))):
        place = (x + i % COLUMNS * cell_w, top + i // COLUMNS * cell_h)
        draw_cell(canvas, place, cell_w - gap, report, i)
    wrong = np.flatnonzero(report.read != report.labels)
    top += rows * cell_h + 34
    if not len(wrong):
        canvas.text(x, top, "Of all held-out digits it misread none.", 17)
        return
    shown = wrong[:MAX_WRONG]
    more = f"{len(shown)} of the {len(wrong)}" if len(wrong) > len(shown) else f"All {len(wrong)}"
    canvas.text(x, top, f"{more} it misread, with what they are", 17)
    for column, i in enumerate(shown):
        draw_cell(canvas, (x + column * cell_w, top + 18), cell_w - gap, report, int(i))


def draw_cell(
    canvas: Canvas, corner: tuple[float, float], side: float, report: Report, i: int
) -> None:
    """One digit with its reading below; a misread one has a red frame and the truth."""
    label, read = int(report.labels[i]), int(report.read[i])
    good = label == read
    canvas.box(corner, (side, side), PANEL if good else WRONG_LIGHT, None if good else WRONG)
    canvas.digit((corner[0] + 3, corner[1] + 3), side - 6, report.images[i])
    middle, below = corner[0] + side / 2, corner[1] + side + 11
    if good:
        canvas.text(middle, below, str(read), 14, MUTED, "mm")
    else:
        canvas.text(middle, below, f"{read}, is {label}", 14, WRONG, "mm")
