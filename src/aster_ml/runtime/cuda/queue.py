"""Enqueues work of an NVIDIA device: its stream, events in it, copies and launches of kernels.

Receives handles, values of variables and sizes; enqueues work in the stream and returns at once.
Graphs of launches are in `cuda/graph`.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from aster_ml.backend import ONCE, Event, Grid, Launch, Program, Queue
from aster_ml.errors import AsterError, CompileError, DeviceError, InternalError
from aster_ml.runtime.cuda.context import CudaDevice, first_of
from aster_ml.runtime.cuda.memory import CudaHandle, overlap
from aster_ml.runtime.cuda.tensor_maps import Tensors
from aster_ml.target.tensor_maps import TensorMap

# Statuses of a launch that exceeds limits of the device, or of the kernel.
TOO_MUCH = (1, 701)
# Status of a launch whose blocks make no clusters.
NO_CLUSTERS = 912
# Bytes of a vector load or store, which must be aligned.
WIDE_NBYTES = 16
# Shared memory of a block without opt-in.
PLAIN_SHARED_NBYTES = 48 << 10


class CudaEvent(Event):
    """An event in the stream of a device."""

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        device.enter()
        self.event = device.check(device.cu.cuEventCreate(0), "making an event")
        device.check(device.cu.cuEventRecord(self.event, device.stream), "an event")

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing() and hasattr(self, "event") and self.device.may_free():
            self.device.cu.cuEventDestroy(self.event)

    def wait(self) -> None:
        """Waits for the device. Raises: DeviceError when it is lost."""
        self.device.enter()
        self.device.check(self.device.cu.cuEventSynchronize(self.event), "waiting for its work")

    def seconds_since(self, earlier: CudaEvent) -> float:
        """By the device's clock."""
        self.wait()
        earlier.wait()
        cu = self.device.cu
        passed = self.device.check(cu.cuEventElapsedTime(earlier.event, self.event), "timing")
        return float(passed) * 1e-3


class CudaQueue(Queue):
    """The stream of one device."""

    def __init__(self, device: CudaDevice) -> None:
        self.device = device

    def signal(self) -> CudaEvent:
        """An event after all enqueued work."""
        return CudaEvent(self.device)

    def wait(self, event: Event) -> None:
        """Lets the stream wait for an event of CUDA; the host waits for others."""
        if not isinstance(event, CudaEvent):
            event.wait()
            return
        device = self.device
        device.enter()
        device.check(device.cu.cuStreamWaitEvent(device.stream, event.event, 0), "waiting")

    def copy(self, target: CudaHandle, source: CudaHandle, nbytes: int) -> bool:
        """Within the device, or from another; False where the two overlap."""
        device, other = self.device, source.device
        device.enter()
        cu = device.cu
        if other is device:
            if overlap(target, source, nbytes):
                return False
            made = cu.cuMemcpyDtoDAsync(target.address, source.address, nbytes, device.stream)
            device.check(made, "a copy within the device")
            return True
        device.reach(other)
        made = cu.cuMemcpyPeerAsync(
            target.address, device.context, source.address, other.context, nbytes, device.stream
        )
        device.check(made, f"a copy from {other.name}")
        # The other device may reuse the memory once the copy is done.
        behind = CudaEvent(device)
        other.enter()
        other.check(cu.cuStreamWaitEvent(other.stream, behind.event, 0), "waiting for a copy")
        return True

    def finish(self) -> None:
        """Waits until the stream is empty."""
        self.device.wait()


class Arguments:
    """Arguments of a kernel for the driver: 64-bit values, and pointers to each.

    Pointers to tensor maps follow.
    """

    def __init__(self, count: int, tensors: int = 0) -> None:
        self.values = (ctypes.c_int64 * count)()
        start = ctypes.addressof(self.values)
        self.places = (ctypes.c_void_p * (count + tensors))(*[start + 8 * i for i in range(count)])
        self.address = ctypes.addressof(self.places)


class CudaProgram(Program):
    """A kernel of a loaded module.

    Its parameters are an address for each buffer, its variables as 64-bit integers, and the address
    of a table of the same values in device memory, which it reads if that is not 0 (see
    `cuda/graph`); then the tensor maps of `tensors`. `shared` is its dynamic shared memory. With
    `looking` the binary is for buffers aligned to 16 bytes, and `looking` compiles one for others.
    """

    def __init__(
        self, name: str, device: CudaDevice, binary: bytes, shared: int = 0,
        looking: Callable[[], bytes] | None = None, tensors: tuple[TensorMap, ...] = (),
    ) -> None:  # fmt: skip
        cu = device.cu
        self.name = name
        self.device = device
        self.nbytes = len(binary)
        self.tensors = Tensors(device, tensors) if tensors else None
        self.lock = threading.Lock()
        self.looking = looking
        self.other: CudaProgram | None = None
        self.arguments = Arguments(0)
        device.enter()
        result = cu.cuModuleLoadData(binary)
        if result[0]:
            result = device.once_more(result, cu.cuModuleLoadData, binary)
        if result[0]:
            raise self.refused(int(result[0]))
        self.module = result[1]
        result = cu.cuModuleGetFunction(self.module, name.encode())
        if result[0]:
            raise self.refused(int(result[0]))
        self.function = result[1]
        self.shared = shared
        if shared:
            self.ask_for_shared()

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing() and hasattr(self, "module") and self.device.may_free():
            self.device.cu.cuModuleUnload(self.module)

    def refused(self, status: int) -> AsterError:
        """The error for a kernel that the driver does not load."""
        fault = self.device.fault(status, f"loading kernel {self.name}")
        if self.device.lost:
            return fault
        return CompileError(f"{fault} ({len(self.name)} letters of name, {self.nbytes} bytes)")

    def function_at(self, addresses: Iterable[int]) -> Any:
        """The driver's function for buffers at these addresses.

        Raises: CompileError; DeviceError.
        """
        if self.looking is None:
            return self.function
        bits = 0
        for address in addresses:
            bits |= address
        if bits % WIDE_NBYTES == 0:
            return self.function
        if self.other is None:
            self.other = CudaProgram(self.name, self.device, self.looking(), self.shared)
        return self.other.function

    def attribute(self, name: str) -> int:
        """An attribute of the kernel."""
        cu = self.device.cu
        which = getattr(cu.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        result = cu.cuFuncGetAttribute(which, self.function)
        return int(self.device.check(result, f"asking for {name} of {self.name}"))

    @functools.cached_property
    def spilled(self) -> int:  # type: ignore[override]
        """Bytes of registers that each work-item spills to memory."""
        self.device.enter()
        return self.attribute("LOCAL_SIZE_BYTES")

    def ask_for_shared(self) -> None:
        """Opts in to more shared memory for a block than the default. Raises: DeviceError."""
        device = self.device
        most = device.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        fixed = self.attribute("SHARED_SIZE_BYTES")
        if fixed + self.shared > most:
            raise DeviceError(
                f"{device.name}: kernel {self.name} needs {fixed + self.shared:,} bytes of shared "
                f"memory in a block and the device has {most:,}; smaller tiles would do (STAGE, "
                "LOCAL and UPCAST of its Opts)"
            )
        if fixed + self.shared > PLAIN_SHARED_NBYTES:
            which = device.cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            result = device.cu.cuFuncSetAttribute(self.function, which, self.shared)
            device.check(result, f"shared memory for {self.name}")

    def __call__(
        self, handles: tuple[Any, ...], vars: tuple[int, ...] = (), launch: Launch = ONCE
    ) -> None:
        """Enqueues a launch.

        Raises: InternalError for one that is none on work-groups; DeviceError.
        """
        if launch.__class__ is not Grid:
            raise InternalError(f"{self.name}: CUDA has blocks of threads, given {launch}")
        blocks, items = launch
        if 0 in blocks:
            return
        device = self.device
        device.enter()
        x, y, z = blocks if len(blocks) == 3 else first_of(blocks)
        bx, by, bz = items if len(items) == 3 else first_of(items)
        addresses = [h.address for h in handles]
        function = self.function if self.looking is None else self.function_at(addresses)
        values = [*addresses, *vars, 0]
        with self.lock:
            arguments = self.arguments
            if len(arguments.values) != len(values):
                maps = self.tensors.maps if self.tensors is not None else ()
                arguments = self.arguments = Arguments(len(values), len(maps))
            arguments.values[:] = values
            if self.tensors is not None:
                forms = self.tensors.forms(values)
                arguments.places[len(values) :] = [ctypes.addressof(form) for form in forms]
            ask = device.cu.cuLaunchKernel
            what = function, x, y, z, bx, by, bz, self.shared, device.stream, arguments.address, 0
            result = ask(*what)
            if result[0]:
                result = device.once_more(result, ask, *what)
        if result[0]:
            raise self.failure(int(result[0]), blocks, items)

    def failure(self, status: int, blocks: tuple[int, ...], items: tuple[int, ...]) -> AsterError:
        """The error for a launch that the driver refuses."""
        doing = f"kernel {self.name} with {blocks} blocks of {items} threads"
        if status == NO_CLUSTERS:
            cluster = self.attribute("REQUIRED_CLUSTER_WIDTH")
            return DeviceError(
                f"{self.device.name}: {doing} is launched in clusters of {cluster} blocks, of "
                "which its first dimension has to be a multiple and the device has to have room "
                "for one (compute capability 9.0 or later); BOXES=1 does without"
            )
        if status not in TOO_MUCH:
            return self.device.fault(status, doing)
        threads = items[0] * items[1] * items[2] if len(items) == 3 else items[0]
        most = self.attribute("MAX_THREADS_PER_BLOCK")
        if threads > most:
            registers = self.attribute("NUM_REGS")
            return DeviceError(
                f"{self.device.name}: {doing} has {threads} threads in a block and can have "
                f"{most}, with {registers} registers a thread; fewer LOCAL or UPCAST would do"
            )
        return DeviceError(
            f"{self.device.name}: {doing} failed: {self.device.describe(status)}. A grid has at "
            "most 2,147,483,647 blocks in its first dimension and 65,535 in the others, a block 64 "
            f"threads in its third and {PLAIN_SHARED_NBYTES:,} bytes of shared memory that nobody "
            "asked for"
        )
