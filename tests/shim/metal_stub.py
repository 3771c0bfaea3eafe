"""The libraries of `metal_objc.c` in the place of Apple's.

`load()` builds and loads them; `put_in_place(patch)` lets the runtime find them until a test ends.
The source of a "Metal library" is C++ with a function `NAME_on_cpu` for each kernel, unless a
compiler is given.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aster_ml.device import Device
from aster_ml.runtime.metal import device as metal
from aster_ml.runtime.metal import objc as metal_objc
from tests.shim import on_cpu

HERE = Path(__file__).parent
CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_char), ctypes.c_int
)
KEPT: list[Any] = []


@functools.cache
def folder() -> Path:
    """Where libraries are built; gone with the process."""
    made = tempfile.TemporaryDirectory(prefix="aster-metal-stub-")
    KEPT.append(made)
    return Path(made.name)


def missing() -> str | None:
    """What the libraries need and is not there."""
    for name in ("cc", "c++"):
        if shutil.which(name) is None:
            return f"no C compiler: {name} is not on PATH"
    return None


@functools.cache
def compile_plain(source: str) -> Path:
    """C++ as a shared library. Raises: RuntimeError with the compiler's words."""
    so = folder() / f"kernels{len(list(folder().glob('kernels*')))}.so"
    command = ["c++", "-O1", "-shared", "-fPIC", "-w", "-x", "c++", "-", "-o", str(so)]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return so


class Stub:
    """The loaded library."""

    def __init__(self) -> None:
        self.path = folder() / "metal.so"
        command = ["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(self.path)]
        subprocess.run([*command, str(HERE / "metal_objc.c"), "-ldl"], check=True)
        self.library = ctypes.CDLL(str(self.path))
        self.library.stub_live.restype = self.library.stub_pooled.restype = ctypes.c_long
        self.compiler: Callable[[str], Path] = compile_plain

        def compile_source(source: bytes, result: Any, n: int) -> int:
            try:
                text, failed = str(self.compiler(source.decode())), 0
            except Exception as error:
                text, failed = str(error), 1
            content = text.encode()[: n - 1] + b"\0"
            ctypes.memmove(result, content, len(content))
            return failed

        self.callback = CALLBACK(compile_source)
        self.library.stub_compiler(self.callback)

    def put_in_place(self, patch: Any) -> None:
        """Lets the runtime find these libraries, as long as a `pytest.MonkeyPatch` lasts."""
        for name in metal_objc.PATHS:
            patch.setitem(metal_objc.PATHS, name, str(self.path))
        metal_objc.forget()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.library, f"stub_{name}")


@contextmanager
def in_place() -> Iterator[Stub]:
    """METAL on these libraries, whose kernels are Metal's language on fibers."""
    stub = load()
    stub.reset()
    with pytest.MonkeyPatch.context() as patch:
        stub.put_in_place(patch)
        stub.compiler = on_cpu.compile_kernel
        metal.missing.cache_clear()
        yield stub
        for name in [name for name in Device.opened if name.partition(":")[0] == "METAL"]:
            Device.opened.pop(name).allocator.free_cache()
        stub.compiler = compile_plain
    metal.missing.cache_clear()
    metal_objc.forget()


@functools.cache
def load() -> Stub:
    """The library, once a process."""
    return Stub()
