"""Opens the CPU device: kernels as native code in this process, on threads, in NumPy's memory.

Detects the processor's abilities and combines LLVM or a C compiler, `cpu/program` for launches and
`host_memory` for buffers.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aster_ml.backend import Backend, Call, Graph, Program
from aster_ml.config import CLANG
from aster_ml.errors import InternalError
from aster_ml.late import late
from aster_ml.runtime.cpu import llvm_jit, native_call
from aster_ml.runtime.cpu.pool import thread_count
from aster_ml.runtime.cpu.program import CpuProgram, graph_of_calls
from aster_ml.runtime.cpu.worker import native
from aster_ml.runtime.host_memory import HostAllocator, read_text
from aster_ml.runtime.host_queue import HostQueue
from aster_ml.target import PLAIN_OPS, Target

# It runs a process of its own, for CLANG=1 alone.
if TYPE_CHECKING:
    from aster_ml.runtime.cpu import clang
else:
    clang = late("runtime.cpu.clang")

DOC = "native code through LLVM (CLANG=1: through a C compiler), on all cores"

# First byte of a binary: made by LLVM, or by a C compiler.
OBJECT, LIBRARY = b"o", b"l"

# Assumed where the system reports none: no processor of the last ten years has less.
SMALLEST_CACHES = (32 << 10, 256 << 10, 2 << 20)


@functools.cache
def cache_bytes() -> tuple[int, int, int]:
    """Data cache sizes of the first three levels; small ones where the system reports none."""
    found: dict[int, int] = {}
    if sys.platform == "darwin":
        # Names of performance cores first, then of machines with one kind of core.
        names = {1: ("perflevel0.l1d", "l1d"), 2: ("perflevel0.l2", "l2"), 3: ("l3",)}
        for level, prefixes in names.items():
            sizes = [sysctl(f"hw.{prefix}cachesize") for prefix in prefixes]
            found[level] = next((size for size in sizes if size > 0), 0)
    else:
        for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index[0-9]*"):
            level, size = read_text(f"{index}/level"), parse_size(read_text(f"{index}/size"))
            if read_text(f"{index}/type") != "Instruction" and level.isdigit():
                found[int(level)] = max(size, found.get(int(level), 0))
    sizes = [found.get(level + 1, 0) for level in range(3)]
    if not sizes[0] or not sizes[1]:
        return SMALLEST_CACHES
    return sizes[0], sizes[1], sizes[2]


def parse_size(text: str) -> int:
    """`48K` -> 49152; 0 for anything else."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = (text[:-1], units.get(text[-1:], 0)) if text[-1:] in units else (text, 1)
    return int(number) * unit if number.isdigit() else 0


def sysctl(name: str) -> int:
    """The value of a sysctl of macOS; 0 if there is none."""
    library = ctypes.CDLL(None)
    value, size = ctypes.c_int64(0), ctypes.c_size_t(8)
    failed = library.sysctlbyname(
        name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)
    )
    return 0 if failed else value.value


@functools.lru_cache(maxsize=16)
def cpu_target(language: str, arch: str, threads: int) -> Target:
    """The Target of this machine."""
    host = llvm_jit.host()
    bits, registers = host.vector
    dots = host.dot_dtypes if language == "llvm" else frozenset()
    more = {"DOT"} if dots else set()
    if language == "llvm" and bits == 512:
        more |= {"LDEXP", "EXP2_32NDS"}
    return Target(
        "CPU", language, arch=arch,
        vector_bits=bits, move_bits=host.move_bits, vector_registers=registers,
        masks=host.has_masks, broadcasts=host.broadcasts,
        cache_bytes=cache_bytes(), threads=threads,
        native_ops=PLAIN_OPS | more, dot_dtypes=dots,
        features=host.simd_features if dots else frozenset(),
        fused=language == "llvm" and host.is_fused,
    )  # fmt: skip


class CpuBackend(Backend):
    """A CPU device. Several CPU devices count memory separately and share all else."""

    compiles_beside = True
    keeps_binaries = True
    tries_schedules = True

    @property
    def target(self) -> Target:
        """Follows the settings CLANG and THREADS. Raises: DeviceError when CLANG=1 lacks one."""
        arch = llvm_jit.host_key()
        if CLANG.value:
            key = clang.compiler_key(clang.require_compiler())
            return cpu_target("c", f"{arch}-{key}", thread_count())
        return cpu_target("llvm", arch, thread_count())

    def compile(self, source: str) -> bytes:
        """LLVM IR, or C with CLANG=1, as machine code. Raises: CompileError."""
        if CLANG.value:
            return LIBRARY + clang.compile_c(source)
        return OBJECT + llvm_jit.compile_ir(source)

    def prepare(self) -> None:
        """The native functions that launch kernels."""
        native_call.entries()
        native()

    def load(self, name: str, binary: bytes) -> Program:
        """The kernel `name`, ready to launch. Raises: CompileError."""
        kind, code = binary[:1], binary[1:]
        if kind == OBJECT:
            return CpuProgram(name, llvm_jit.load_object(code, name))
        if kind == LIBRARY:
            return CpuProgram(name, clang.load_library(code, name))
        raise InternalError(f"a binary of the CPU starts with one of {OBJECT!r}, {LIBRARY!r}")

    def load_all(self, binaries: Sequence[tuple[Sequence[str], bytes]]) -> list[Program]:
        """Loads functions of several binaries; objects of LLVM are linked together.

        Raises: CompileError.
        """
        if not all([binary.startswith(OBJECT) for _, binary in binaries]):
            return super().load_all(binaries)
        loaded = llvm_jit.load_objects([(names, binary[1:]) for names, binary in binaries])
        each = zip(binaries, loaded, strict=True)
        return [CpuProgram(name, o) for (names, _), o in each for name in names]

    def make_graph(self, calls: Sequence[Call]) -> Graph:
        """The launches as one native call for each thread."""
        return graph_of_calls(calls)

    def disassemble(self, source: str) -> str:
        """The assembly of the compiled source."""
        return clang.assemble_c(source) if CLANG.value else llvm_jit.assemble(source)


def missing() -> str | None:
    """Names what the CPU device needs and does not find."""
    if importlib.util.find_spec("llvmlite") is None:
        return "llvmlite is not installed; pip install llvmlite brings it"
    return None


def open_backend(name: str) -> Backend:
    """The backend of "CPU" or "CPU:1"."""
    return CpuBackend(name, HostAllocator(name), HostQueue())
