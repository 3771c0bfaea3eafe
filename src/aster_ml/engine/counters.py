"""What has been run and how long each part took, readable by programs.

`GlobalCounters` counts since the last `reset()`: kernels, arithmetic, bytes, and seconds spent in
scheduling, compiling, waiting for compilers and kernels.
"""

from __future__ import annotations

import atexit
from typing import ClassVar

from aster_ml.allocator import MEMORY
from aster_ml.config import DEBUG


class CounterMeta(type):
    """Lets the class itself have the computed counter `mem_used`."""

    @property
    def mem_used(cls) -> int:
        """Bytes allocated on all devices now."""
        return MEMORY.in_use()


class GlobalCounters(metaclass=CounterMeta):
    """Totals of the process since `reset()`.

    `global_ops` in arithmetic operations, `global_mem` in bytes that kernels read and wrote,
    `time_sum_s` in seconds of kernels that were timed (DEBUG=2 or more).
    """

    global_ops: ClassVar[int] = 0
    global_mem: ClassVar[int] = 0
    time_sum_s: ClassVar[float] = 0.0
    kernel_count: ClassVar[int] = 0
    schedule_s: ClassVar[float] = 0.0
    compile_s: ClassVar[float] = 0.0
    wait_s: ClassVar[float] = 0.0
    schedule_hits: ClassVar[int] = 0
    schedule_misses: ClassVar[int] = 0
    compiled_kernels: ClassVar[int] = 0

    @staticmethod
    def reset() -> None:
        """Sets every counter to zero."""
        GlobalCounters.global_ops = GlobalCounters.global_mem = GlobalCounters.kernel_count = 0
        GlobalCounters.time_sum_s = GlobalCounters.schedule_s = 0.0
        GlobalCounters.compile_s = GlobalCounters.wait_s = 0.0
        GlobalCounters.schedule_hits = GlobalCounters.schedule_misses = 0
        GlobalCounters.compiled_kernels = 0


def print_totals() -> None:
    """The closing lines of DEBUG=1."""
    c = GlobalCounters
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
