"""Figures of one library, results of one row, and whether libraries agree. Measures nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.row import Row

# Agreement of results, relative: sums of float32 in another order stay well within.
TOLERANCE = 2e-3


@dataclass
class Figures:
    """What one library reached in one row, in the row's unit."""

    values: list[float] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)
    error: str = ""
    less_is_better: bool = True

    @property
    def best(self) -> float:
        """The least time, the highest rate."""
        return min(self.values) if self.less_is_better else max(self.values)

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.values)


@dataclass
class Result:
    """One row of the table at one number of threads."""

    row: Row
    title: str
    threads: int
    figures: dict[str, Figures]

    def ratio(self, of: Callable[[Figures], float]) -> float | None:
        """How many times better Aster is than the best peer; None without one to compare."""
        ours = self.figures.get("aster")
        peers = [
            f
            for name, f in self.figures.items()
            if name != "aster" and name not in self.row.aside and f.values
        ]
        if ours is None or not ours.values or not peers or not self.row.compare:
            return None
        mine = of(ours)
        if self.row.less_is_better:
            theirs = min(of(f) for f in peers)
            return theirs / mine if mine else None
        return mine / max(of(f) for f in peers)

    @property
    def met(self) -> bool | None:
        """Whether the median is what is wanted; None where nothing is, or it cannot be told."""
        wanted, ours = self.row.wanted, self.figures.get("aster")
        if wanted is None:
            return None
        if ours is None or not ours.values:
            return False
        if wanted.of_ratio:
            ratio = self.ratio(lambda f: f.median)
            return None if ratio is None else ratio >= wanted.limit
        if self.row.less_is_better:
            return ours.median <= wanted.limit
        return ours.median >= wanted.limit


def compare_checks(checks: dict[str, list[float]], errors: dict[str, str]) -> None:
    """A library whose numbers are not Aster's gets an error instead of a time.

    Where its peers agree with each other, and none with Aster, it is Aster that gets it.
    """
    if "aster" not in checks:
        return
    ours = checks["aster"]
    peers = [name for name in checks if name != "aster"]
    against = [name for name in peers if not agree(ours, checks[name])]
    if against and against == peers:
        first = checks[peers[0]]
        if all(agree(first, checks[name]) for name in peers):
            errors["aster"] = f"the result differs: {shown(ours)}, {peers[0]} {shown(first)}"
            return
    for name in against:
        errors[name] = f"the result differs: {shown(checks[name])}, aster {shown(ours)}"


def agree(a: list[float], b: list[float]) -> bool:
    """Whether two lists of numbers are the same up to rounding."""
    return len(a) == len(b) and all(
        abs(x - y) <= TOLERANCE * max(abs(x), abs(y)) + 1e-9 for x, y in zip(a, b, strict=True)
    )


def shown(numbers: list[float]) -> str:
    """Numbers for a message."""
    return "[" + ", ".join(f"{v:.6g}" for v in numbers) + "]"
