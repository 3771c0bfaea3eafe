"""Devices as programs of tinygrad's look at them: renderer, compiler, which dtypes work.

`aster_ml.device` passes these names on. Each is read off a `Backend` and its `Target`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aster_ml.allocator import Allocator
from aster_ml.allocator import PooledAllocator as LRUAllocator
from aster_ml.backend import Backend
from aster_ml.backend import Backend as Compiled
from aster_ml.compat.cpu_programs import CPUProgram, MallocAllocator
from aster_ml.device import KINDS, STORAGE_KINDS, Device
from aster_ml.dtype import DType, dtypes
from aster_ml.errors import CompileError
from aster_ml.extend import GraphRunner

__all__ = [
    "ALL_DEVICES", "Allocator", "BufferSpec", "CPUProgram", "CompileError", "Compiled", "Compiler",
    "CompilerOptions", "LRUAllocator", "MallocAllocator", "enumerate_devices_str",
    "is_dtype_supported",
]  # fmt: skip

ALL_DEVICES = [kind for kind in KINDS if kind not in STORAGE_KINDS]


class RendererView:
    """Language and capabilities of a device's kernels, read off its Target."""

    def __init__(self, backend: Backend) -> None:
        target = backend.target
        self.language = target.language
        self.device = backend.name
        self.suffix = target.language.upper()
        self.has_local = target.has_local
        self.has_shared = target.has_barrier
        self.has_threads = target.threads > 1
        self.has_aux = False
        self.supports_float4 = target.vector_bits >= 128
        self.shared_max = target.local_bytes
        self.local_max = (target.max_group,) * 3 if target.has_local else None
        self.global_max = (target.threads,) if target.threads > 1 else None
        # No device of Aster has tensor cores.
        self.tensor_cores: list[Any] = []

    def __repr__(self) -> str:
        return f"<renderer of {self.language} for {self.device}>"


class Compiler:
    """A device's compiler. Who replaces `compile_cached` replaces what the engine calls."""

    def __init__(self, backend: Backend) -> None:
        self.__dict__["backend"] = backend

    def compile(self, src: str) -> bytes:
        """Compiles the source. Raises: CompileError."""
        found: bytes = self.__dict__["backend"].compile(src)
        return found

    @property
    def compile_cached(self) -> Any:
        """Compiler from source to binary; the engine keeps the results."""
        return self.__dict__["backend"].compile

    @compile_cached.setter
    def compile_cached(self, function: Any) -> None:
        self.__dict__["backend"].compile = function


def graph_class(backend: Backend) -> type[GraphRunner] | None:
    """Class of recordings for a device; None where its runtime makes no native graphs."""
    return None if type(backend).make_graph is Backend.make_graph else GraphRunner


@dataclass(frozen=True)
class BufferSpec:
    """Options of an allocation. Aster's devices have one kind of memory, so only defaults work."""

    image: Any = None
    uncached: bool = False
    cpu_access: bool = False
    host: bool = False
    nolru: bool = False
    external_ptr: int | None = None


@dataclass(frozen=True)
class CompilerOptions:
    """Capabilities that a kernel may use: the names of an older `Renderer`."""

    device: str = ""
    suffix: str = ""
    supports_float4: bool = True
    has_local: bool = True
    has_shared: bool = True
    has_tensor_cores: bool = False
    global_max: tuple[int, ...] | None = None
    local_max: tuple[int, ...] | None = None
    shared_max: int = 32768

    @classmethod
    def of(cls, renderer: RendererView) -> CompilerOptions:
        """Those of a device."""
        names = [name for name in cls.__dataclass_fields__ if hasattr(renderer, name)]
        return cls(**{name: getattr(renderer, name) for name in names})


def is_dtype_supported(dtype: DType, device: str | None = None) -> bool:
    """Whether tensors of a dtype can be computed with on a device (None: the default one).

    All dtypes of tensors can: what a processor has no arithmetic for is emulated.

    Raises: DeviceError for a name that is no device.
    """
    kind = Device.canonicalize(device).partition(":")[0]
    return kind not in STORAGE_KINDS and dtype in (*dtypes.floats, *dtypes.ints, dtypes.bool)


def enumerate_devices_str() -> Iterator[str]:
    """A line for each kind of device: whether it works, and what it is or lacks."""
    for row in Device.describe():
        default = "*" if row.name == Device.DEFAULT.partition(":")[0] else " "
        yield f"{default} {row.name:8} {'PASS' if row.works else 'FAIL'}  {row.note}"
