"""Opens METAL: kernels on Apple GPUs, by messages to the system's own libraries.

Reports missing parts, makes the Target of the device, and combines the modules of the folder:
`objc` and `api` (messages), `context` (device), `memory`, `queue` and `graph`. Nobody has run it on
hardware yet: tests emulate Apple's libraries.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace

from aster_ml.backend import Backend, Call, Graph, Program
from aster_ml.errors import CompileError, DeviceError
from aster_ml.runtime.metal import objc
from aster_ml.runtime.metal.api import api
from aster_ml.runtime.metal.context import APPLE7, MetalDevice, default_device
from aster_ml.runtime.metal.graph import MetalGraph, can_record
from aster_ml.runtime.metal.memory import MetalAllocator
from aster_ml.runtime.metal.objc import POINTER, Object
from aster_ml.runtime.metal.queue import MetalProgram, MetalQueue
from aster_ml.target import Target
from aster_ml.target.metal import metal_target

DOC = "Apple's graphics processors"
# The first version of macOS with bfloat16.
BFLOAT_SYSTEM = 14


@functools.cache
def missing() -> str | None:
    """Names what Metal needs and does not find."""
    if sys.platform != "darwin" and objc.PATHS["objc"].startswith("/usr/lib"):
        return f"Metal is a part of macOS, and this is {platform.system()}"
    try:
        device = default_device()
    except OSError as error:
        return f"Metal's libraries do not load ({error})"
    if device is None:
        return "the system shows no Metal device (a session without one, or a virtual machine)"
    return None


def open_backend(name: str) -> Backend:
    """The backend of "METAL" or "METAL:1", which is another queue of the same device."""
    device = default_device()
    if device is None:
        raise DeviceError(str(missing()))
    return MetalBackend(MetalDevice(name, device))


def one_word(text: str) -> str:
    """A device's name without spaces."""
    return "-".join(text.split()) or "unnamed"


def probe(device: MetalDevice, name: str) -> Target:
    """Makes the Target of a device.

    why: GPUs of AMD and Intel have other warp sizes, and no matrix products
    """
    system = int(platform.mac_ver()[0].partition(".")[0] or 0)
    target = metal_target(arch=f"{one_word(name)}-macos{system}")
    if not device.is_of(APPLE7):
        target = replace(target, warp=0, features=frozenset(), tensor_cores=frozenset())
    dtypes = target.native_dtypes
    return replace(
        target,
        local_bytes=int(api().shared_nbytes(device.device.address)),
        native_dtypes=dtypes if system >= BFLOAT_SYSTEM else dtypes - {"bfloat16"},
    )


class MetalBackend(Backend):
    """One queue of the system's device."""

    tries_schedules = True

    def __init__(self, device: MetalDevice) -> None:
        self.device = device
        with objc.pool():
            name = objc.text_of(api().name(device.device.address))
        self.probed = probe(device, name)
        # Virtual machines have no indirect command buffers that work.
        self.has_graphs = "virtual" not in name.lower()
        self.libraries: dict[bytes, Object] = {}
        super().__init__(device.name, MetalAllocator(device), MetalQueue(device))

    @property
    def target(self) -> Target:
        """Target of the device."""
        return self.probed

    def compile(self, source: str) -> bytes:
        """The source, checked by the compiler; the system caches binaries. Raises: CompileError."""
        self.library(source.encode())
        return source.encode()

    def library(self, source: bytes) -> Object:
        """The library of a source. Raises: CompileError with the compiler's words."""
        found = self.libraries.get(source)
        if found is not None:
            return found
        with objc.pool():
            options = objc.make("MTLCompileOptions")
            # What IEEE says of NaN, infinities and rounding holds.
            api().set_fast_math(options.address, False)
            error = POINTER(0)
            made = api().new_library(
                self.device.device.address, objc.string(source.decode()), options.address,
                ctypes.addressof(error),
            )  # fmt: skip
            if not made:
                raise CompileError(
                    f"{self.name}: Metal refused generated source:\n{objc.error_text(error.value)}"
                )
        library = self.libraries[source] = Object(made)
        return library

    def load(self, name: str, binary: bytes) -> Program:
        """The kernel `name`, ready to launch. Raises: CompileError; DeviceError."""
        program = MetalProgram(name, self.device, self.library(binary))
        self.libraries.pop(binary, None)
        return program

    def make_graph(self, calls: Sequence[Call]) -> Graph | None:
        """The launches as one indirect command buffer, if the device supports that."""
        if not self.has_graphs or not can_record(calls):
            return None
        assert isinstance(self.allocator, MetalAllocator)
        return MetalGraph(self.allocator, calls)
