"""Compiles C by a compiler on PATH to a shared library, and loads its functions.

CLANG=1 selects it in place of LLVM: the source is readable C, and debuggers and profilers for C
work on kernels. Receives source; returns bytes or addresses.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from aster_ml.config import EXACT, ISA
from aster_ml.errors import CompileError, DeviceError

COMPILERS = ("cc", "clang", "gcc")
# No kernel reads errno.
FLAGS = ("-shared", "-fPIC", "-O2", "-fno-math-errno")
# Products fuse with sums (FMA); with EXACT=1 they do not.
CONTRACTION = ("-ffp-contract=fast", "-ffp-contract=off")
# ISA -> options that disable instructions of the host.
LEFT_OUT: dict[str, tuple[str, ...]] = {"": (), "avx2": ("-mno-avx512f",)}


def find_compiler() -> str | None:
    """The path of the first of cc, clang and gcc on PATH, or None."""
    return next((path for name in COMPILERS if (path := shutil.which(name))), None)


def require_compiler() -> str:
    """The path of a C compiler. Raises: DeviceError when there is none."""
    path = find_compiler()
    if path is None:
        raise DeviceError(
            "CLANG=1 needs a C compiler: none of cc, clang, gcc is on PATH; install one or unset "
            "CLANG"
        )
    return path


def compiler_key(path: str) -> str:
    """One word that changes with the compiler, its version and the flags."""
    return key_with(path, flags())


@functools.cache
def key_with(path: str, given: tuple[str, ...]) -> str:
    """The key with these flags."""
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    digest = hashlib.blake2b(f"{lines}{given}".encode(), digest_size=6).hexdigest()
    return f"{Path(path).name}-{digest}"


def flags() -> tuple[str, ...]:
    """The compiler's flags on this machine, with ISA and EXACT as they are."""
    shared = (*FLAGS, CONTRACTION[bool(EXACT)])
    # Compilers for ARM and POWER name the host by -mcpu, those for x86 by -march.
    if platform.machine() not in ("x86_64", "AMD64", "i686"):
        return (*shared, "-mcpu=native")
    return (*shared, "-march=native", *LEFT_OUT[ISA.value])


def run_compiler(source: str, output: str, *extra: str) -> bytes:
    """Runs the compiler on `source`; returns what it wrote to a file of the name `output`."""
    compiler = require_compiler()
    with tempfile.TemporaryDirectory(prefix="aster-", ignore_cleanup_errors=True) as folder:
        result = Path(folder) / output
        command = [compiler, *flags(), *extra, "-x", "c", "-", "-o", str(result)]
        if os.name == "posix" and not extra:
            command.append("-lm")
        done = subprocess.run(command, input=source.encode(), capture_output=True, check=False)
        if done.returncode != 0:
            words = done.stderr.decode(errors="replace").strip()
            raise CompileError(f"{compiler} refused generated C:\n{words}")
        return result.read_bytes()


def compile_c(source: str) -> bytes:
    """C source -> shared library.

    Raises: DeviceError without a compiler; CompileError with the compiler's message.
    """
    return run_compiler(source, "kernel.dll" if sys.platform == "win32" else "kernel.so")


def assemble_c(source: str) -> str:
    """C source -> the compiler's assembly."""
    return run_compiler(source, "kernel.s", "-S").decode(errors="replace")


class LoadedLibrary:
    """A shared library in memory. Its addresses are valid as long as it lives."""

    __slots__ = ("addresses", "path", "unload")
    # Pages for what its kinds of sections hold, and the loader's tables.
    nbytes = 1 << 16

    def __init__(self, library: ctypes.CDLL, names: tuple[str, ...], path: Path | None) -> None:
        self.addresses: dict[str, int] = {}
        self.path = path
        self.unload = functools.partial(close_library, library._handle, path)
        for name in names:
            if not hasattr(library, name):
                raise CompileError(f"a library could not be loaded: it defines no function {name}")
            address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
            self.addresses[name] = address or 0

    def address(self, name: str) -> int:
        """Where the function `name` starts."""
        return self.addresses[name]

    # Bound here, since at the interpreter's end the names of a module may be gone already.
    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing():
            self.unload()


def close_library(handle: int, path: Path | None) -> None:
    """Unloads a library and removes its file, if that exists."""
    if sys.platform == "win32":
        ctypes.windll.kernel32.FreeLibrary(ctypes.c_void_p(handle))
    else:
        CORE.dlclose(ctypes.c_void_p(handle))
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink()
            path.parent.rmdir()


CORE = ctypes.CDLL(None) if os.name == "posix" else ctypes.CDLL("msvcrt")


def load_library(binary: bytes, *names: str) -> LoadedLibrary:
    """Loads a shared library from its bytes and finds these functions in it.

    Raises: CompileError when it is no library or lacks a function.
    """
    folder = Path(tempfile.mkdtemp(prefix="aster-"))
    path = folder / ("kernel.dll" if sys.platform == "win32" else "kernel.so")
    try:
        path.write_bytes(binary)
        library = ctypes.CDLL(str(path))
        # Windows keeps the file of a loaded library; elsewhere its name can go at once.
        kept = path if sys.platform == "win32" else None
        return LoadedLibrary(library, names, kept)
    except OSError as error:
        raise CompileError(f"a library could not be loaded: {error}") from None
    finally:
        if sys.platform != "win32":
            shutil.rmtree(folder, ignore_errors=True)
