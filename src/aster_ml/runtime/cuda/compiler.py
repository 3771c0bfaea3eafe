"""Compiles CUDA C++ by NVRTC for one architecture, without a driver, and disassembles SASS.

Receives source and an architecture ("sm_90a"); returns a cubin with a header that has the dynamic
shared memory and the tensor maps of launches. The object cache keeps results. No PTX is generated,
since an older driver rejects the PTX of a newer NVRTC.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
import struct
import subprocess
import tempfile
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from aster_ml.errors import CompileError, DeviceError
from aster_ml.runtime import object_cache
from aster_ml.target.cuda import dynamic_nbytes
from aster_ml.target.tensor_maps import TensorMap, tensor_maps

# Separate products and sums in the source are not fused.
OPTIONS = (
    "--std=c++17", "--fmad=false", "--device-as-default-execution-space", "--ptxas-options=-v",
)  # fmt: skip
# ptxas' message on spilled registers, and the line of a source that asks for several blocks.
SPILLS = re.compile(r"[1-9]\d* bytes spill stores")
MANY_AT_ONCE = re.compile(r"(__launch_bounds__\(\d+, )[2-9]\)")
# From this capability on, code for one architecture ("a") may use all its features.
FIRST_OF_ITS_OWN = 90
MAGIC = b"aster-cubin-4\n\0\0"
HEADER = struct.Struct(f"<{len(MAGIC)}sQQ")
# The line of a source with code for unaligned buffers, and the definition that disables the code.
LOOKS, ALIGNED = "#if !ASTER_ALIGNED\n", "#define ASTER_ALIGNED 1\n"


class Binary(NamedTuple):
    """A cubin, the dynamic shared memory of launches, and a source for unaligned buffers.

    `tensors` are the tensor maps that launches pass (TMA). With a `source` the cubin assumes that
    all buffers are aligned to 16 bytes; for others the source is compiled. It is empty where
    alignment does not matter.
    """

    cubin: bytes
    shared: int
    source: str = ""
    tensors: tuple[TensorMap, ...] = ()


def arch_name(major: int, minor: int) -> str:
    """The compiler's name of the architecture of this compute capability."""
    number = 10 * major + minor
    return f"sm_{number}{'a' if number >= FIRST_OF_ITS_OWN else ''}"


@functools.cache
def binding() -> ModuleType:
    """NVRTC's functions."""
    from cuda.bindings import nvrtc

    module: ModuleType = nvrtc
    return module


@functools.cache
def missing() -> str | None:
    """Names what compiling needs and does not find."""
    try:
        version()
    except (ImportError, RuntimeError, DeviceError) as error:
        return f"NVRTC does not load ({first_line(error)}); pip install 'aster-ml[cuda]' brings it"
    return None


def first_line(error: BaseException) -> str:
    """First line of an error."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


@functools.cache
def version() -> tuple[int, int]:
    """NVRTC's version. Raises: DeviceError; ImportError or RuntimeError if it is absent."""
    status, major, minor = binding().nvrtcVersion()
    if status:
        raise DeviceError(f"NVRTC returns no version: {status!r}; reinstalling it may help")
    return int(major), int(minor)


@functools.cache
def architectures() -> frozenset[int]:
    """The numbers of architectures that NVRTC supports; empty where it does not report them."""
    try:
        status, numbers = binding().nvrtcGetSupportedArchs()
    except (ImportError, RuntimeError):
        return frozenset()
    return frozenset() if status else frozenset(int(n) for n in numbers)


@functools.cache
def include_folder() -> str | None:
    """The folder of the runtime's headers (half and fp8), if they are installed."""
    found = importlib.util.find_spec("nvidia")
    for parent in found.submodule_search_locations or () if found is not None else ():
        for folder in sorted(Path(parent).glob("cu1*/include"), reverse=True):
            if (folder / "cuda_fp16.h").exists():
                return str(folder)
    return None


def options_of(source: str, arch: str) -> list[str]:
    """The compiler's options for a source, with the include folder if it includes a header."""
    options = [f"--gpu-architecture={arch}", *OPTIONS]
    if "#include" in source and (folder := include_folder()) is not None:
        options.append(f"--include-path={folder}")
    return options


def compile_cubin(source: str, arch: str) -> bytes:
    """The machine code of a source. Raises: CompileError with the compiler's message.

    Where registers for several blocks spill, it is compiled for one block.
    """
    cubin, log = compile_once(source, arch)
    roomy = roomier(source, log)
    return cubin if roomy is None else compile_once(roomy, arch)[0]


def compile_once(source: str, arch: str) -> tuple[bytes, str]:
    """The machine code of a source and the compiler's log. Raises: CompileError."""
    rtc = binding()
    options = [option.encode() for option in options_of(source, arch)]
    status, program = rtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    if status:
        raise CompileError(f"NVRTC creates no program of the source: {status!r}")
    try:
        (status,) = rtc.nvrtcCompileProgram(program, len(options), options)
        if status:
            raise CompileError(
                f"NVRTC {'.'.join(map(str, version()))} refused generated CUDA C++ for {arch}:\n"
                f"{log_of(program)}"
            )
        return read(program, rtc.nvrtcGetCUBINSize, rtc.nvrtcGetCUBIN), log_of(program)
    finally:
        rtc.nvrtcDestroyProgram(program)


def roomier(source: str, log: str) -> str | None:
    """The source without its limit of registers, if the log reports spills; else None."""
    if SPILLS.search(log) is None or MANY_AT_ONCE.search(source) is None:
        return None
    return MANY_AT_ONCE.sub(r"\g<1>1)", source)


def read(program: Any, size: Any, get: Any) -> bytes:
    """A result of NVRTC for a program. Raises: CompileError."""
    status, nbytes = size(program)
    content = bytearray(nbytes)
    if not status:
        (status,) = get(program, content)
    if status:
        raise CompileError(f"NVRTC returns no result: {status!r}")
    return bytes(content)


def log_of(program: Any) -> str:
    """Log of NVRTC for a program."""
    rtc = binding()
    log = read(program, rtc.nvrtcGetProgramLogSize, rtc.nvrtcGetProgramLog)
    return log.rstrip(b"\0").decode(errors="replace").strip()


def compile_source(source: str, arch: str) -> bytes:
    """The cubin of a source with its header, from the disk cache if it is there.

    Of a source with code for unaligned buffers it is the cubin for aligned ones.

    Raises: CompileError.
    """
    digest = hashlib.blake2b(source.encode(), digest_size=16).hexdigest()
    key = f"{MAGIC!r} {arch} {version()} {OPTIONS} {digest}"
    binary = object_cache.get(key)
    if binary is None:
        shared, looks = dynamic_nbytes(source), LOOKS in source
        cubin = compile_cubin(ALIGNED + source if looks else source, arch)
        binary = pack(Binary(cubin, shared, source if looks else "", tensor_maps(source)))
        object_cache.put(key, binary)
    return binary


def compile_unaligned(source: str, arch: str) -> bytes:
    """The cubin of a source for unaligned buffers. Raises: CompileError."""
    digest = hashlib.blake2b(source.encode(), digest_size=16).hexdigest()
    key = f"cuda looking {arch} {version()} {OPTIONS} {digest}"
    cubin = object_cache.get(key)
    if cubin is None:
        cubin = compile_cubin(source, arch)
        object_cache.put(key, cubin)
    return cubin


def pack(binary: Binary) -> bytes:
    """Packs a header, a cubin, its tensor maps and the source."""
    lines = "\n".join([tensor.line() for tensor in binary.tensors])
    text = zlib.compress(f"{lines}\0{binary.source}".encode())
    return HEADER.pack(MAGIC, binary.shared, len(text)) + text + binary.cubin


def unpack(binary: bytes) -> Binary:
    """The reverse of `pack`. Raises: CompileError."""
    if not binary.startswith(MAGIC) or len(binary) <= HEADER.size:
        raise CompileError(f"a binary of CUDA begins with {MAGIC!r}, given {binary[:16]!r}")
    _, shared, length = HEADER.unpack_from(binary)
    start = HEADER.size + length
    try:
        lines, _, source = zlib.decompress(binary[HEADER.size : start]).decode().partition("\0")
        return Binary(binary[start:], shared, source, tensor_maps(lines))
    except (zlib.error, ValueError, LookupError) as error:
        raise CompileError(f"the texts of a binary of CUDA are damaged: {error}") from None


@functools.cache
def disassembler() -> str | None:
    """The path of nvdisasm, on PATH or in its package."""
    path = shutil.which("nvdisasm")
    found = importlib.util.find_spec("nvidia") if path is None else None
    for parent in found.submodule_search_locations or () if found is not None else ():
        for file in sorted(Path(parent).glob("cu1*/bin/nvdisasm*"), reverse=True):
            return str(file)
    return path


def disassemble(cubin: bytes) -> str:
    """The instructions of a cubin (SASS), or a line on how to get nvdisasm."""
    path = disassembler()
    if path is None:
        return "(nvdisasm shows SASS; pip install nvidia-cuda-nvdisasm brings it)"
    with tempfile.TemporaryDirectory(prefix="aster-") as folder:
        name = os.path.join(folder, "kernel.cubin")
        Path(name).write_bytes(cubin)
        done = subprocess.run([path, "-c", name], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else f"(nvdisasm failed: {done.stderr.strip()})"
