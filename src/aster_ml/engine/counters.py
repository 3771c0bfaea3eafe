"""Counts what has been run and how long each part took, readable by programs.

`GlobalCounters` counts since the last `reset()`: kernels, arithmetic, bytes, and seconds spent in
scheduling, compiling, waiting for compilers and kernels.
"""

from __future__ import annotations

import atexit
from typing import ClassVar

from aster_ml.allocator import MEMORY
from aster_ml.config import DEBUG


class Totals:
    """The counters themselves, in an object: what is stored in a class costs five times as much."""

    global_ops: int = 0
    global_mem: int = 0
    time_sum_s: float = 0.0
    kernel_count: int = 0
    schedule_s: float = 0.0
    compile_s: float = 0.0
    wait_s: float = 0.0
    graph_hits: int = 0
    schedule_hits: int = 0
    schedule_misses: int = 0
    kernel_hits: int = 0
    disk_hits: int = 0
    compiled_kernels: int = 0

    def reset(self) -> None:
        """Sets every counter to zero."""
        vars(self).clear()


TOTALS = Totals()


def counter(name: str) -> property:
    """A counter as an attribute that can be read and set."""
    return property(lambda _: getattr(TOTALS, name), lambda _, value: setattr(TOTALS, name, value))


class CounterMeta(type):
    """Lets the class itself have the counters, and the computed one `mem_used`."""

    @property
    def mem_used(cls) -> int:
        """Bytes allocated on all devices now."""
        return MEMORY.in_use()


for _name in Totals.__annotations__:
    setattr(CounterMeta, _name, counter(_name))


class GlobalCounters(metaclass=CounterMeta):
    """Totals of the process since `reset()`.

    `global_ops` in arithmetic operations, `global_mem` in bytes that kernels read and wrote,
    `time_sum_s` in seconds of kernels that were timed (DEBUG=2 or more). By level of
    `engine.caches`: `graph_hits` of recorded graphs, `schedule_hits` (with those) and
    `schedule_misses`, `kernel_hits` in memory, `disk_hits`, and `compiled_kernels` that no level
    had.
    """

    global_ops: ClassVar[int]
    global_mem: ClassVar[int]
    time_sum_s: ClassVar[float]
    kernel_count: ClassVar[int]
    schedule_s: ClassVar[float]
    compile_s: ClassVar[float]
    wait_s: ClassVar[float]
    graph_hits: ClassVar[int]
    schedule_hits: ClassVar[int]
    schedule_misses: ClassVar[int]
    kernel_hits: ClassVar[int]
    disk_hits: ClassVar[int]
    compiled_kernels: ClassVar[int]

    @staticmethod
    def reset() -> None:
        """Sets every counter to zero."""
        TOTALS.reset()


def print_totals() -> None:
    """The closing lines of DEBUG=1."""
    c = TOTALS
    if not DEBUG or not c.kernel_count:
        return
    timed = f", {c.time_sum_s * 1e3:.1f} ms in kernels" if c.time_sum_s else ""
    print(
        f"{c.kernel_count} kernels ({c.compiled_kernels} compiled), {c.global_ops / 1e9:.3f} "
        f"billion operations, {c.global_mem / 1e9:.3f} GB moved; {c.schedule_s * 1e3:.1f} ms "
        f"scheduling, {c.compile_s * 1e3:.1f} ms compiling (of it {c.wait_s * 1e3:.1f} ms in the "
        f"backend's compiler){timed}; peak memory {MEMORY.peak() / 1e6:.1f} MB"
    )


atexit.register(print_totals)
