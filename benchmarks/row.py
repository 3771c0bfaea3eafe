"""What a row of the table is, and what a subject hands to the worker. Pure data."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

# Units in which less is better, with how many of them make a second (1 for plain counts).
TIMES = {"s": 1.0, "ms": 1e3, "us": 1e6}
COUNTS = ("calls", "frames", "nodes", "bytes")


@dataclass(frozen=True)
class Wanted:
    """A bound on Aster's value, or on its ratio to the best peer."""

    limit: float
    of_ratio: bool = False

    def text(self, less_is_better: bool) -> str:
        """As the table has it: `<= 0.8`, or `1.0x` for a ratio."""
        if self.of_ratio:
            return f"{self.limit:.1f}x"
        return f"{'<=' if less_is_better else '>='} {self.limit:g}"


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure of one case.

    `how` is the way it is measured: "timed" repeats a call in a living process, "once" asks a
    living process for named values, "fresh" asks a new process each time, "process" times whole
    processes. `key` is the figure's name among those that the case gives. `work` is what one call
    does, in the unit of a rate (operations, bytes, samples) or in the number of parts that a time
    is divided by.
    """

    name: str
    subject: str
    case: str
    unit: str
    wanted: Wanted | None = None
    params: dict[str, Any] = field(default_factory=dict)
    quick_params: dict[str, Any] = field(default_factory=dict)
    how: str = "timed"
    key: str = "seconds"
    work: float = 1.0
    one_thread_too: bool = False
    libraries: tuple[str, ...] = ("torch", "compile", "jax", "numpy", "tinygrad")
    # Shown, but no part of the ratio.
    aside: tuple[str, ...] = ()
    # False where the figure of a peer means another thing than ours.
    compare: bool = True

    @property
    def less_is_better(self) -> bool:
        """Times and counts, as against rates."""
        return self.unit in TIMES or self.unit in COUNTS

    def params_for(self, quick: bool) -> dict[str, Any]:
        """The sizes of this run."""
        return {**self.params, **self.quick_params} if quick else self.params

    def title(self, quick: bool) -> str:
        """The name, with the sizes of this run where it has places for them."""
        return self.name.format(**self.params_for(quick))

    def value(self, raw: float) -> float:
        """What the table shows for one sample: seconds, or a count, as the case gave it."""
        if self.unit in TIMES:
            return raw * TIMES[self.unit] / self.work
        if self.unit in COUNTS:
            return raw
        scale = 1e9 if self.unit.startswith("G") else 1.0
        return self.work / raw / scale

    def matches(self, pattern: str, quick: bool) -> bool:
        """Whether `--only PATTERN` keeps this row: by name, or by subject."""
        return any(
            fnmatch.fnmatchcase(text, pattern) or pattern in text
            for text in (self.title(quick), self.subject)
        )


@dataclass
class Case:
    """What a subject prepared for one library.

    `run` does the work once and returns when it is done. `check` gives a few numbers that every
    library must agree on; `facts` what else is worth keeping.
    """

    run: Callable[[], Any]
    check: Callable[[], list[float]]
    facts: Callable[[], dict[str, float]] = dict


# Builds a case: (library, parameters of the row) -> Case. A case of how="once" gives its values.
Builder = Callable[..., Case]
Values = Callable[..., dict[str, float]]
