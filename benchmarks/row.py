"""What a row of the table is, and what a subject hands to the worker. Pure data."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

# Units in which less is better, with how many of them make a second.
TIMES = {"s": 1.0, "ms": 1e3, "us": 1e6}
# Named figures that are shown as the case gives them: counts never vary, the others do.
COUNTS = ("calls", "frames", "nodes", "bytes")
MEASURED = ("MB", "us/UOp", "ms/kernel")


def is_less_better(unit: str) -> bool:
    """Times and counts, as against rates."""
    return unit in TIMES or unit in COUNTS or unit in MEASURED


@dataclass(frozen=True)
class Wanted:
    """A bound on Aster's value, or on its ratio to the best peer; with one thread maybe another.

    `over_peer` says that the bound is so much more than the best peer has.
    """

    limit: float
    of_ratio: bool = False
    one_thread: float | None = None
    over_peer: bool = False

    def at(self, threads: int) -> float:
        """The limit with so many threads."""
        return self.one_thread if threads == 1 and self.one_thread is not None else self.limit

    def text(self, less_is_better: bool, threads: int) -> str:
        """As the table has it: `<= 0.8`, or `1.0x` for a ratio."""
        limit = self.at(threads)
        if self.of_ratio:
            return f"{limit:.1f}x" if limit == round(limit, 1) else f"{limit:.2f}x"
        if self.over_peer:
            return f"<= peer + {limit:g}"
        return f"{'<=' if less_is_better else '>='} {limit:g}"


@dataclass(frozen=True)
class Row:
    """One line of the table, or one case of a set: a figure of something that runs.

    `how` is the way it is measured: "timed" repeats a call in a living process, "turns" asks living
    processes for named values in turn, "once" asks a new process for them, "fresh" times a first
    call in a new process, "process" times whole processes. `key` is the figure's name among those
    that the case gives. `work` is what one call does, in the unit of a rate (operations, bytes,
    samples) or in the number of parts that a time is divided by.
    """

    name: str
    subject: str
    case: str
    unit: str
    wanted: Wanted | None = None
    params: dict[str, Any] = field(default_factory=dict)
    quick_params: dict[str, Any] = field(default_factory=dict)
    how: str = "timed"
    # How many turns each library has at most, where that is less than usual.
    most_rounds: int = 1 << 10
    key: str = "seconds"
    work: float = 1.0
    one_thread_too: bool = False
    libraries: tuple[str, ...] = ("torch", "compile", "jax", "numpy", "tinygrad")
    # Name of the set of random cases that it is one of; sets are shown as their means.
    drawn: str = ""
    # How far results of libraries may differ, relative; the default is that of float32.
    tolerance: float = 2e-3
    # The row whose rate bounds this one, a plain copy or a plain sum: Aster runs it, too, in a
    # process of its own, and takes a turn with it next to each of this row's.
    ceiling: Row | None = None
    # Shown, but no part of the ratio.
    aside: tuple[str, ...] = ()
    # False where the figure of a peer means another thing than ours.
    compare: bool = True

    @property
    def less_is_better(self) -> bool:
        """Times and counts, as against rates."""
        return is_less_better(self.unit)

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
        if self.unit in COUNTS or self.unit in MEASURED:
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
    library must agree on; `facts` what else is worth keeping. `value` is what `run` computes, not
    yet realized, where the library has such a thing.
    """

    run: Callable[[], Any]
    check: Callable[[], list[float]]
    facts: Callable[[], dict[str, float]] = dict
    value: Callable[[], Any] | None = None


# Builds a case: (library, parameters of the row) -> Case. A case of how="once" gives its values,
# one of how="turns" what gives them, again and again.
Builder = Callable[..., Case]
Values = Callable[..., dict[str, float]]
Turns = Callable[..., Callable[[], dict[str, float]]]
