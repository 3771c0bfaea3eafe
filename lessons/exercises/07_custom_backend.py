"""Exercises of lesson 07. Replace each `raise` and run `aster lesson check 07`."""

from typing import Any

from aster_ml.allocator import Allocator
from aster_ml.backend import Backend


class CountingAllocator(Allocator):
    """An allocator around another one, `inner`: `held` is how many bytes are handed out now."""

    def __init__(self, inner: Allocator) -> None:
        raise NotImplementedError

    def alloc(self, nbytes: int) -> Any:
        raise NotImplementedError

    def free(self, handle: Any, nbytes: int) -> None:
        raise NotImplementedError

    def copyin(self, handle: Any, source: memoryview) -> None:
        raise NotImplementedError

    def copyout(self, target: memoryview, handle: Any) -> None:
        raise NotImplementedError

    def offset(self, handle: Any, byte_offset: int, nbytes: int) -> Any:
        raise NotImplementedError


def scalar_backend(name: str) -> Backend:
    """The backend of lesson 07, but its target has no SIMD (`vector_bits=0`)."""
    raise NotImplementedError


def slowest(log: list[tuple[str, float]]) -> str:
    """The kernel that took most time in all, of launches (name, seconds)."""
    raise NotImplementedError


def fill(backend: Any, value: float, count: int) -> bytes:
    """`count` float32 of one value, written by a C function of your own on this backend."""
    raise NotImplementedError
