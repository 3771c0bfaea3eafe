"""Owns the context and stream of an NVIDIA device, and translates the driver's errors.

Receives the number of a device; returns the object through which the other modules of CUDA call
the driver. Memory, programs and graphs do not belong here. `cuda.bindings` is imported on the first
use.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from aster_ml.errors import AsterError, DeviceError, InternalError, OutOfMemoryError
from aster_ml.thread_state import SharedWeakSet

# Errors after which every call fails until the process ends: status -> what happened.
FATAL = {
    3: "the driver is not initialised here: it does not survive a fork (start processes by spawn)",
    4: "the driver is shutting down",
    46: "the device is not available, or used by another process alone",
    214: "the device's memory has an error that cannot be corrected",
    220: "a link between devices has an error that cannot be corrected",
    226: "the device has stopped what an error of it could have spoilt",
    700: "a kernel touched memory that is not its own",
    702: "a kernel ran longer than the system lets it (devices that also drive a screen)",
    709: "the device's context was destroyed",
    710: "an assertion in a kernel failed",
    714: "the device's program counter or stack has an error",
    715: "a kernel has an instruction that the device does not know",
    716: "a kernel loaded or stored at an address that is not aligned",
    717: "a kernel used memory of one kind as that of another",
    718: "a kernel jumped to an address that is no code",
    719: "a kernel failed",
    721: "a kernel has not given back memory of the tensor cores",
    810: "the service that shares the device (MPS) has ended this process's part",
    999: "the driver fails without a reason",
}
OUT_OF_MEMORY = 2
# Other errors with a message of their own.
KNOWN = {
    1: "a value is out of bounds",
    34: "the library is one to link programs with and no driver; the folder of stubs has to go "
    "from LD_LIBRARY_PATH",
    100: "there is no device",
    101: "there is no such device",
    200: "the binary is none for this device",
    209: "the binary is for another architecture than the device's",
    218: "the driver's compiler is older than the code",
    222: "the driver is older than the compiler that the code is from",
    301: "a file is missing",
    304: "the operating system refused something",
    500: "there is no such name",
    701: "the kernel needs more registers, threads or shared memory than the device has",
    802: "the system is not ready; on machines with NVSwitch nvidia-fabricmanager has to run",
    803: "the driver's library and its kernel module are of different versions; a restart helps",
    804: "the package cuda-compat is there and does not know this device; without it all may work",
}


@functools.cache
def binding() -> ModuleType:
    """The driver's functions."""
    from cuda.bindings import driver

    module: ModuleType = driver
    return module


def library_name() -> str:
    """Name of the driver's library."""
    return "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"


class CurrentDevice(threading.local):
    """The device whose context is current in a thread."""

    device: CudaDevice | None = None


CURRENT = CurrentDevice()
DEVICES: SharedWeakSet[CudaDevice] = SharedWeakSet()


def forget_devices() -> None:
    """Marks devices as lost in a forked child, since contexts belong to the parent."""
    for device in list(DEVICES):
        device.lost = device.lost or FATAL[3]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget_devices)


def meaning(status: int) -> str:
    """The message of a status; "" where there is none."""
    return FATAL.get(status) or KNOWN.get(status) or ""


class CudaDevice:
    """A device with its context and its only stream.

    Once the device is lost, `enter` raises, and the driver is not called any more.
    """

    def __init__(self, name: str, ordinal: int) -> None:
        cu = self.cu = binding()
        self.name = name
        self.ordinal = ordinal
        self.lost = ""
        self.process = os.getpid()
        self.number = self.check(cu.cuDeviceGet(ordinal), "opening it")
        # The primary context, which other libraries of this process share.
        self.context = self.check(cu.cuDevicePrimaryCtxRetain(self.number), "opening it")
        # With several devices, other libraries may change the current context.
        self.alone = self.check(cu.cuDeviceGetCount(), "opening it") == 1
        self.enter()
        flags = cu.CUstream_flags.CU_STREAM_NON_BLOCKING
        self.stream = self.check(cu.cuStreamCreate(flags), "making a stream")
        self.peers: set[int] = set()
        # Frees memory that is kept for reuse, and returns the number of bytes.
        self.spare: Callable[[], int] = int
        DEVICES.add(self)

    def enter(self) -> None:
        """Makes its context the current one. Raises: DeviceError when it is lost."""
        if self.lost:
            raise DeviceError(f"{self.name} was lost ({self.lost}); a new process can use it again")
        if CURRENT.device is not self or not self.alone:
            self.check(self.cu.cuCtxSetCurrent(self.context), "entering its context")
            CURRENT.device = self

    def may_free(self) -> bool:
        """Enters the context to free something; False if the device is lost."""
        if self.lost or os.getpid() != self.process:
            return False
        self.cu.cuCtxSetCurrent(self.context)
        CURRENT.device = self
        return True

    def check(self, result: tuple[Any, ...], doing: str) -> Any:
        """The driver's result without its status. Raises: the error of `fault`."""
        if result[0]:
            raise self.fault(int(result[0]), doing)
        return result[1] if len(result) > 1 else None

    def once_more(self, result: tuple[Any, ...], ask: Any, *args: Any) -> tuple[Any, ...]:
        """The result of a call, repeated after freeing the pool if it ran out of memory.

        why: the driver itself allocates memory for modules, stacks and graphs, which the pool holds
        """
        if int(result[0]) == OUT_OF_MEMORY and self.spare():
            again: tuple[Any, ...] = ask(*args)
            return again
        return result

    def fault(self, status: int, doing: str) -> AsterError:
        """The error of a status; a fatal one marks the device as lost."""
        text = self.describe(status)
        if status in FATAL:
            self.lost = self.lost or text
            return DeviceError(
                f"{self.name} is lost: {text}. It showed at {doing}, and may come from any launch "
                "before. Results since then are not there; a new process can use the device "
                "again. compute-sanitizer names the kernel"
            )
        if status == OUT_OF_MEMORY:
            return OutOfMemoryError(
                f"{self.name} has no room for {doing}: {self.room()}; smaller batches would help"
            )
        return DeviceError(f"{self.name}: {doing} failed: {text}")

    def describe(self, status: int) -> str:
        """The message of a status, with the driver's name of it."""
        name = f"error {status}"
        try:
            found = self.cu.cuGetErrorName(self.cu.CUresult(status))
        except ValueError:
            found = (1,)  # newer than the binding
        if not found[0]:
            name = found[1].decode()
        words = meaning(status)
        return f"{words} ({name})" if words else name

    def room(self) -> str:
        """Free memory of the device, as text."""
        status, left, total = self.cu.cuMemGetInfo()
        if status:
            return "how much is left is unknown"
        return f"{left >> 20:,} MB of its {total >> 20:,} MB are free"

    def attribute(self, name: str) -> int:
        """An attribute of the device."""
        which = getattr(self.cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.check(self.cu.cuDeviceGetAttribute(which, self.number), f"reading {name}"))

    def wait(self) -> None:
        """Waits for all work in the stream. Raises: DeviceError when the device is lost."""
        self.enter()
        self.check(self.cu.cuStreamSynchronize(self.stream), "waiting for its work")

    def reach(self, other: CudaDevice) -> None:
        """Enables peer access to another device's memory, where the two are linked."""
        if other.ordinal in self.peers:
            return
        self.peers.add(other.ordinal)
        can = self.check(
            self.cu.cuDeviceCanAccessPeer(self.number, other.number), "asking for a link"
        )
        if can:
            # Without peer access copies go through the host, so a failure only costs time.
            self.cu.cuCtxEnablePeerAccess(other.context, 0)


def first_of(sizes: tuple[Any, ...]) -> tuple[int, int, int]:
    """Sizes of a launch in three dimensions. Raises: InternalError where there are more."""
    if len(sizes) > 3:
        raise InternalError(f"CUDA has blocks in three dimensions, given {sizes}")
    x, y, z = (*sizes, 1, 1, 1)[:3]
    return x, y, z
