"""How many bytes Aster copies, on the host and in kernels, while a `with` block lasts."""

from __future__ import annotations

from typing import Any

from aster_ml.engine.counters import TOTALS
from aster_ml.runtime.host_memory import HostAllocator


class Copied:
    """`nbytes` of copies between buffers and arrays, and all that kernels read or wrote."""

    def __enter__(self) -> Copied:
        self.nbytes = 0
        self.before = TOTALS.global_mem
        self.copyin, self.copyout = HostAllocator.copyin, HostAllocator.copyout

        def copyin(allocator: Any, handle: Any, source: memoryview) -> None:
            self.nbytes += source.nbytes
            self.copyin(allocator, handle, source)

        def copyout(allocator: Any, target: memoryview, handle: Any) -> None:
            self.nbytes += target.nbytes
            self.copyout(allocator, target, handle)

        HostAllocator.copyin, HostAllocator.copyout = copyin, copyout  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        HostAllocator.copyin = self.copyin  # type: ignore[method-assign]
        HostAllocator.copyout = self.copyout  # type: ignore[method-assign]
        self.nbytes += TOTALS.global_mem - self.before
