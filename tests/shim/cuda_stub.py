"""The driver library of `cuda_driver.c`, built and loaded under the name of NVIDIA's.

`load()` gives the library with its faults; from then on `cuda.bindings` finds it in this process.
`library_of(source)` is CUDA C++ as a "cubin" that it runs.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aster_ml.device import Device
from aster_ml.runtime.cuda import compiler as cuda_compiler
from aster_ml.runtime.cuda import context as cuda_device
from aster_ml.runtime.cuda import device as cuda
from tests.shim import on_cpu

HERE = Path(__file__).parent
NAMES = ("MEMORY", "PINNED", "STREAMS", "EVENTS", "MODULES", "GRAPHS", "EXECS")


@functools.cache
def folder() -> Path:
    """Where libraries are built; gone with the process."""
    made = tempfile.TemporaryDirectory(prefix="aster-cuda-stub-")
    KEPT.append(made)
    return Path(made.name)


KEPT: list[tempfile.TemporaryDirectory[str]] = []


def missing() -> str | None:
    """What the stub needs and is not there."""
    for name in ("cc", "c++"):
        if shutil.which(name) is None:
            return f"no C compiler: {name} is not on PATH"
    try:
        import cuda.bindings.driver  # noqa: F401
    except ImportError:
        return "cuda-bindings is absent: pip install 'aster-ml[cuda]'"
    return None


def build(compiler: str, *arguments: str) -> None:
    """Runs a compiler. Raises: AssertionError with its words."""
    done = subprocess.run([compiler, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Stub:
    """The loaded library."""

    def __init__(self) -> None:
        path = folder() / "libcuda.so.1"
        build(
            "cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden",
            "-Wl,-soname,libcuda.so.1", "-o", str(path), str(HERE / "cuda_driver.c"), "-ldl",
            "-lpthread",
        )  # fmt: skip
        self.library = ctypes.CDLL(str(path))
        self.library.stub_memory.argtypes = [ctypes.c_size_t]
        self.library.stub_calls.restype = self.library.stub_live.restype = ctypes.c_long

    def reset(self) -> None:
        """No faults, two devices, no calls counted."""
        self.library.stub_reset()

    def fail(self, name: str, status: int, after: int = 1) -> None:
        """The call number `after` from now of a function gives this status."""
        self.library.stub_fail(name.encode(), status, after)

    def lose(self, status: int) -> None:
        """The next kernel that runs ends the device with this status."""
        self.library.stub_lose(status)

    def set(self, what: str, value: int) -> None:
        """What the driver says: version, devices, memory, max_threads, major, fixed_shared,
        local_nbytes.
        """
        getattr(self.library, f"stub_{what}")(value)

    def calls(self, name: str) -> int:
        """How often a function was called since `reset`."""
        return int(self.library.stub_calls(name.encode()))

    def live(self) -> dict[str, int]:
        """How many of each kind of thing were made and not given back."""
        return {name: int(self.library.stub_live(i)) for i, name in enumerate(NAMES)}


@functools.cache
def load() -> Stub:
    """The library, once a process."""
    return Stub()


@functools.cache
def library_of(source: str) -> bytes:
    """Source of kernels as a shared library that runs them."""
    return on_cpu.compile_kernel(source).read_bytes()


@contextmanager
def in_place() -> Iterator[Stub]:
    """CUDA on this driver, compiled for it; afterwards the driver shows no device, as before."""
    stub = load()
    stub.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_compiler, "compile_cubin", lambda source, arch: library_of(source))
        patch.setattr(cuda_compiler, "version", lambda: (13, 0))
        forget()
        yield stub
        for name in [n for n in Device.opened if n.partition(":")[0] == "CUDA"]:
            backend = Device.opened.pop(name)
            backend.allocator.free_cache()
            backend.allocator.staging.free()
        stub.reset()
        stub.set("devices", 0)
        forget()


def forget() -> None:
    """What is known of the driver is asked anew."""
    cuda.missing.cache_clear()
    cuda.device_count.cache_clear()
    cuda_device.CURRENT.device = None
