"""Solutions of lesson 07."""

import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from aster_ml.allocator import Allocator
from aster_ml.backend import Backend, ThreadParts
from aster_ml.target import Target

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import custom_device


class CountingAllocator(Allocator):
    """An allocator around another one, `inner`: `held` is how many bytes are handed out now."""

    def __init__(self, inner: Allocator) -> None:
        self.inner = inner
        self.held = 0

    def alloc(self, nbytes: int) -> Any:
        self.held += nbytes
        return self.inner.alloc(nbytes)

    def free(self, handle: Any, nbytes: int) -> None:
        self.held -= nbytes
        self.inner.free(handle, nbytes)

    def copyin(self, handle: Any, source: memoryview) -> None:
        self.inner.copyin(handle, source)

    def copyout(self, target: memoryview, handle: Any) -> None:
        self.inner.copyout(target, handle)

    def offset(self, handle: Any, byte_offset: int, nbytes: int) -> Any:
        return self.inner.offset(handle, byte_offset, nbytes)


class ScalarBackend(custom_device.LessonBackend):
    """Without SIMD."""

    @property
    def target(self) -> Target:
        return replace(super().target, vector_bits=0)


def scalar_backend(name: str) -> Backend:
    """The backend of lesson 07, but its target has no SIMD (`vector_bits=0`)."""
    return ScalarBackend(name, custom_device.MemoryOfBytes(), custom_device.NoQueue())


def slowest(log: list[tuple[str, float]]) -> str:
    """The kernel that took most time in all, of launches (name, seconds)."""
    total: dict[str, float] = defaultdict(float)
    for name, seconds in log:
        total[name] += seconds
    return max(total, key=lambda name: total[name])


def fill(backend: Any, value: float, count: int) -> bytes:
    """`count` float32 of one value, written by a C function of your own on this backend."""
    source = f"""
    #include <stdint.h>
    void fill(uint64_t *args, int64_t begin, int64_t end) {{
      for (int64_t i = begin; i < end; i++) ((float *)args[0])[i] = {value!r};
    }}
    """
    program = backend.load("fill", backend.compile(source))
    memory = backend.allocator.alloc(4 * count)
    program((memory,), launch=ThreadParts(count))
    result = bytearray(4 * count)
    backend.allocator.copyout(memoryview(result), memory)
    return bytes(result)
