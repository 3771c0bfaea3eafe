"""CUDA C++ and MSL on a CPU: from the source of kernels to a library with a function for each.

`compile_kernel(source)` returns the path of a library. For each `__global__` function NAME in the
source it has

    int NAME_on_cpu(void **args, const unsigned *grid, const unsigned *block, unsigned shared)

`args` is as in cuLaunchKernel: an address of the value of each argument (a pointer, a 64-bit
integer for a variable, and the address of the table that kernels end with, or 0). `grid` and
`block` are three numbers each; `shared` are the bytes of dynamic shared memory. It returns when all
blocks have run: 0, or 1 where threads of a block parted or waited at different barriers, and `const
char *aster_error()` of the library says which. One launch of a library runs at a time. Of a kernel
in Metal's language, `shared` is how many arguments there are; it has no table.

    program = load(compile_kernel(source), "double_it")
    program((address_out, address_in), (), (4, 1, 1), (64, 1, 1))

Libraries are kept by source in the folder of the session's cache.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from aster_ml.errors import CompileError, DeviceError
from aster_ml.renderer.cuda.renderer import FUNCTIONS as CUDA_FUNCTIONS
from aster_ml.target.cuda import dynamic_nbytes
from aster_ml.target.tensor_maps import TensorMap, tensor_maps
from aster_ml.uop.linear import Linear
from tests.shim.guarded import Guarded
from tests.shim.mma_on_cpu import with_tensor_cores
from tests.shim.tensor_forms import encode

HERE = Path(__file__).resolve().parent
COMPILERS = ("g++", "clang++", "c++")
# Nothing is contracted: fma is written where one rounding is meant. -O1 costs least in all.
FLAGS = (
    "-std=c++17", "-O1", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC",
    "-shared", "-fno-exceptions", "-fno-math-errno", "-w", "-nostartfiles",
)  # fmt: skip
KERNEL = re.compile(
    r"__global__\s+void\s+(?:__cluster_dims__\((\d+), 1, 1\)\s*)?"
    r"(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\("
)
METAL_KERNEL = re.compile(r"^kernel void (\w+)\(", re.MULTILINE)
METAL_HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
# Before a source: it runs on a processor that takes subnormal numbers for 0.
FLUSH = "// Subnormal numbers are 0.\n"
# Metal has types for what are structs of ours in CUDA.
# Its integers of 64 bits are `long`, those of CUDA `long long`.
METAL_TYPES = "\n".join([
    CUDA_FUNCTIONS.texts["aster_odd"],
    "static inline float aster_odd(long x) { return aster_odd((long long)x); }",
    "static inline float aster_odd(unsigned long x) { return aster_odd((unsigned long long)x); }",
    *[
        CUDA_FUNCTIONS.texts[name]
        for name in ("aster_half_codes", "aster_half", "aster_bfloat_codes", "aster_bfloat")
    ],
])  # fmt: skip


def find_compiler() -> str | None:
    """The path of a C++ compiler, or None."""
    return next((path for name in COMPILERS if (path := shutil.which(name))), None)


@functools.cache
def folder() -> Path:
    """Where libraries are kept, as long as the session lasts."""
    cache = os.environ.get("CACHEDIR")
    path = Path(cache) / "shim" if cache else Path(tempfile.mkdtemp(prefix="aster-shim-"))
    path.mkdir(parents=True, exist_ok=True)
    return path


def together(sources: Sequence[str]) -> str:
    """One source of several, whose kernels have different names; their helpers may be the same."""
    return "\n".join([f"namespace n{i} {{\n{s}\n}}" for i, s in enumerate(sources)])


def keep_source(source: str, digest: str, suffix: str) -> None:
    """Leaves a source in the folder that SHIM_SOURCES names, for `tools/gpu_compile`."""
    if kept := os.environ.get("SHIM_SOURCES"):
        Path(kept).mkdir(parents=True, exist_ok=True)
        (Path(kept) / f"{digest}.{suffix}").write_text(source)


def compile_kernel(source: str) -> Path:
    """The shared library of the kernels in a source.

    Raises: DeviceError without a compiler; CompileError with the compiler's words.
    """
    header = HERE / "cuda_on_cpu.h"
    is_metal = METAL_HEAD in source
    headers = b"".join([path.read_bytes() for path in sorted(HERE.glob("*_on_cpu.h"))])
    digest = hashlib.blake2b(source.encode() + headers, digest_size=16).hexdigest()
    keep_source(source, digest, "metal" if is_metal else "cu")
    path = folder() / f"{digest}.so"
    if path.exists():
        return path
    # Metal has no clusters.
    names = METAL_KERNEL.findall(source) if is_metal else KERNEL.findall(source)
    if not names:
        raise CompileError("shim: the source has no kernel")
    compiler = find_compiler()
    if compiler is None:
        raise DeviceError(f"shim: none of {', '.join(COMPILERS)} is on PATH; g++ would do")
    spaces = "".join([f"using namespace n{i};\n" for i in range(source.count("namespace n"))])
    entries = "\n".join(
        [
            f"ASTER_METAL_ENTRY({name})" if is_metal else f"ASTER_ENTRY({name[1]}, {name[0] or 1})"
            for name in names
        ]
    )
    whole = f"{with_tensor_cores(source)}\n{spaces}{entries}\n"
    if is_metal:
        own = f'{METAL_TYPES}\n#include "{HERE / "metal_on_cpu.h"}"\nusing namespace metal;\n'
        whole = own + whole.replace(METAL_HEAD, "")
    shared = dynamic_nbytes(source)
    defines = [f"-DASTER_SHARED_NBYTES={shared}"] if shared else []
    defines += ["-DASTER_FLUSH=1"] if source.startswith(FLUSH) else []
    started = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
    command = [compiler, *FLAGS, *defines, "-include", str(header), "-x", "c++", "-", "-o"]
    done = subprocess.run(
        [*command, str(started), "-lm"], input=whole.encode(), capture_output=True, check=False
    )
    if done.returncode != 0:
        raise CompileError(f"shim: {compiler} refused a kernel:\n{done.stderr.decode()}\n{source}")
    # Another process, or thread, may be at the same one.
    started.replace(path)
    return path


class KernelOnCpu:
    """A kernel of a library. Launches raise DeviceError where threads of a block part."""

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self.library = ctypes.CDLL(str(path))
        try:
            self.entry = self.library[f"{name}_on_cpu"]
        except AttributeError:
            raise CompileError(f"shim: the library has no kernel {name}") from None
        self.library.aster_error.restype = ctypes.c_char_p

    def __call__(
        self,
        buffers: tuple[int, ...],
        variables: tuple[int, ...],
        grid: tuple[int, ...],
        block: tuple[int, ...],
        shared: int = 0,
        tensors: tuple[TensorMap, ...] = (),
    ) -> None:
        """Runs all blocks on memory at these addresses. Raises: DeviceError."""
        values: list[ctypes.c_int64 | ctypes.Array[ctypes.c_char]] = [
            *[ctypes.c_int64(x) for x in (*buffers, *variables, 0)],
            *[encode(tensor, buffers) for tensor in tensors],
        ]
        args = (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in values])
        sizes = [(ctypes.c_uint * 3)(*(*n, 1, 1, 1)[:3]) for n in (grid, block)]
        if self.entry(args, *sizes, ctypes.c_uint(shared)):
            raise DeviceError(f"{self.name}: {self.library.aster_error().decode()}")


@functools.cache
def load(path: Path, name: str) -> KernelOnCpu:
    """The kernel `name` of a library. Raises: CompileError where it has none of the name."""
    return KernelOnCpu(path, name)


def run(
    source: str, linear: Linear, arrays: list[np.ndarray], variables: tuple[int, ...] = ()
) -> None:
    """Compiles the source of a linear program and runs it on these arrays, in place.

    What it touches beside them is an error (`guarded`).
    """
    grid = tuple([int(n) for n in linear.global_size])
    program = load(compile_kernel(source), linear.name)
    shared = len(arrays) + len(variables) if METAL_HEAD in source else dynamic_nbytes(source)
    memory = [Guarded(a) for a in arrays]
    addresses, maps = tuple([m.address for m in memory]), tensor_maps(source)
    program(addresses, variables, grid, linear.local_size, shared, maps)
    for m in memory:
        m.copy_back()
