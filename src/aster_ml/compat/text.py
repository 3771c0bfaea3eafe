"""Formats text for terminals: colour codes, lines of a width, names for functions."""

from __future__ import annotations

import functools
import re

from aster_ml.compat.kernels import KernelInfo
from aster_ml.helpers import colored

CODES = re.compile("\x1b\\[(?:K|.*?m)")


def ansistrip(s: str) -> str:
    """Text without the codes that colour it."""
    return CODES.sub("", s)


def ansilen(s: str) -> int:
    """Width of text on a terminal."""
    return len(ansistrip(s))


def colorize_float(x: float) -> str:
    """A ratio such as `  1.25x`: red above 1.15, green below 0.75, yellow between."""
    color = "green" if x < 0.75 else "red" if x > 1.15 else "yellow"
    return colored(f"{x:7.2f}x", color)


def word_wrap(x: str, wrap: int = 80) -> str:
    """Text in lines of at most `wrap` places; codes that colour it take none."""
    return "\n".join([part for line in x.split("\n") for part in pieces(line, wrap)])


def pieces(line: str, width: int) -> list[str]:
    """A line cut where it has taken `width` places."""
    found, at, taken, start = [], 0, 0, 0
    while at < len(line):
        code = CODES.match(line, at)
        if code is not None:
            at = code.end()
            continue
        if taken == width:
            found.append(line[start:at])
            start, taken = at, 0
        taken += 1
        at += 1
    return [*found, line[start:]]


def strip_parens(fst: str) -> str:
    """Text without the parentheses around it, where the first one belongs to the last."""
    if not (fst.startswith("(") and fst.endswith(")")):
        return fst
    depth = 0
    for i, c in enumerate(fst):
        depth += (c == "(") - (c == ")")
        if depth == 0 and i < len(fst) - 1:
            return fst
    return fst[1:-1]


@functools.cache
def to_function_name(s: str) -> str:
    """Text as an identifier: colours off, other characters by their code."""
    return KernelInfo(s).function_name


@functools.cache
def lines(fn: str) -> list[str]:
    """The lines of a text file, each with its end; read once."""
    with open(fn, encoding="utf-8") as file:
        return file.readlines()


def printable(loc: tuple[str, int]) -> str:
    """The line of source at (file, number); `<missing>` where it cannot be read."""
    try:
        return lines(loc[0])[loc[1] - 1].strip()
    except (OSError, IndexError, UnicodeDecodeError):
        return "<missing>"
