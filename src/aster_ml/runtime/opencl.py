"""Opens OPENCL: kernels on any device with an OpenCL driver, through pyopencl.

Finds devices, makes their Targets, builds source, allocates memory and launches kernels. A handle
is memory and a byte offset, because OpenCL restricts the start of a sub-buffer; kernels take the
two as two arguments (see `renderer/opencl.py`). pyopencl is imported on the first use.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from aster_ml.allocator import PooledAllocator, format_bytes
from aster_ml.backend import ONCE, Backend, Event, Grid, Launch, Program, Queue
from aster_ml.errors import CompileError, DeviceError, InternalError, OutOfMemoryError
from aster_ml.runtime import object_cache
from aster_ml.target import GPU, INTEGERS, PLAIN_OPS, Target

DOC = "OpenCL devices: graphics processors, and through PoCL the CPU"

# Functions of every OpenCL device, with an error that the specification bounds (4 ULP).
BUILT_IN_OPS = PLAIN_OPS | {"EXP2", "LOG2", "SIN", "POW"}


@functools.cache
def binding() -> ModuleType:
    """pyopencl."""
    import pyopencl

    module: ModuleType = pyopencl
    return module


@functools.cache
def devices() -> tuple[Any, ...]:
    """All devices of all platforms: graphics processors first, CPUs last."""
    cl = binding()
    try:
        platforms = cl.get_platforms()
    except cl.Error:
        # The loader reports "no platform" as an error.
        return ()
    found: list[Any] = []
    for platform in platforms:
        try:
            found += platform.get_devices()
        except cl.Error:
            continue  # a driver without a device says so by an error, too
    rank = {cl.device_type.GPU: 0, cl.device_type.ACCELERATOR: 1}
    return tuple(sorted(found, key=lambda d: rank.get(d.type & ~cl.device_type.DEFAULT, 2)))


@functools.cache
def missing() -> str | None:
    """Names what OpenCL needs and does not find."""
    if importlib.util.find_spec("pyopencl") is None:
        return "pyopencl is not installed; pip install 'aster-ml[opencl]' brings it"
    try:
        found = devices()
    except ImportError as error:
        return f"pyopencl does not load ({error}); pip install --force-reinstall pyopencl may help"
    if not found:
        return (
            "no OpenCL platform has a device; the graphics driver brings one, and PoCL is one "
            "on any CPU: apt-get install pocl-opencl-icd"
        )
    return None


def open_backend(name: str) -> Backend:
    """The backend of "OPENCL" or "OPENCL:1"; numbers wrap around after the last device."""
    number = int(name.partition(":")[2] or 0)
    found = devices()
    return OpenCLBackend(name, found[number % len(found)])


def one_word(text: str) -> str:
    """A driver's text without spaces and commas."""
    return "-".join(text.replace(",", " ").replace("=", " ").split())


def probe(device: Any) -> Target:
    """Makes the Target of a device."""
    cl = binding()
    extensions = device.extensions.split()
    dtype_names = set(INTEGERS) | {"float32"}
    if "cl_khr_fp64" in extensions:
        dtype_names.add("float64")
    if "cl_khr_fp16" in extensions:
        dtype_names.add("float16")
    is_cpu = bool(device.type & cl.device_type.CPU)
    # A GPU runs lanes as work-items; a SIMD value is only a wide load there.
    bits = 32 * device.native_vector_width_float if is_cpu else 128
    arch = one_word(f"{device.platform.name} {device.name} {device.driver_version}")
    return Target(
        "OPENCL", "opencl", arch=arch, kind=GPU, vector_bits=min(max(bits, 128), 512),
        vector_registers=32,
        cache_bytes=(32 << 10, max(device.global_mem_cache_size, 256 << 10), 4 << 20),
        has_local=True, has_barrier=True,
        max_group=min(device.max_work_group_size, device.max_work_item_sizes[0]),
        local_bytes=device.local_mem_size,
        # 32-bit indices suffice if no buffer is larger than 2 GB.
        index_bits=32 if device.max_mem_alloc_size <= 1 << 31 else 64,
        native_dtypes=frozenset(dtype_names), native_ops=frozenset(BUILT_IN_OPS),
        flushes=frozenset() if keeps_subnormals(device) else frozenset({"float32"}),
    )  # fmt: skip


class OpenCLHandle:
    """Memory from byte `offset` of a memory object on."""

    __slots__ = ("memory", "nbytes", "offset")

    def __init__(self, memory: Any, offset: int, nbytes: int) -> None:
        self.memory = memory
        self.offset = offset
        self.nbytes = nbytes


class OpenCLAllocator(PooledAllocator):
    """Pooled memory of one device; the pool keeps at most a quarter of it."""

    def __init__(self, name: str, context: Any, queue: Any, device: Any) -> None:
        super().__init__(name, device.global_mem_size // 4)
        self.context = context
        self.queue = queue
        self.largest = device.max_mem_alloc_size

    def alloc_block(self, nbytes: int) -> OpenCLHandle:
        """A memory object of its own. Raises: MemoryError."""
        cl = binding()
        if nbytes > self.largest:
            raise MemoryError(f"the device takes {format_bytes(self.largest)} in one piece")
        try:
            memory = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, nbytes)
        except cl.MemoryError as error:
            raise MemoryError(str(error)) from None
        return OpenCLHandle(memory, 0, nbytes)

    def free_block(self, handle: OpenCLHandle, nbytes: int) -> None:
        """Releases the memory object; kernels in flight keep it alive."""
        handle.memory.release()

    def copyin(self, handle: OpenCLHandle, source: memoryview) -> None:
        """Host to device, after everything launched before."""
        self.copy(handle.memory, np.frombuffer(source, np.uint8), dst_offset=handle.offset)

    def copyout(self, target: memoryview, handle: OpenCLHandle) -> None:
        """Device to host, after everything launched before."""
        self.copy(np.frombuffer(target, np.uint8), handle.memory, src_offset=handle.offset)

    def copy(self, target: Any, source: Any, **offset: int) -> None:
        """A blocking copy. Raises: OutOfMemoryError; DeviceError."""
        with translated_errors(self.device, "a copy"):
            binding().enqueue_copy(self.queue, target, source, is_blocking=True, **offset)

    def offset(self, handle: OpenCLHandle, byte_offset: int, nbytes: int) -> OpenCLHandle:
        """A part of the same memory."""
        return OpenCLHandle(handle.memory, handle.offset + byte_offset, nbytes)


def keeps_subnormals(device: Any) -> bool:
    """Whether float32 arithmetic has subnormal numbers."""
    return bool(device.single_fp_config & binding().device_fp_config.DENORM)


def out_of_memory(name: str, error: Exception) -> OutOfMemoryError:
    """The error of a driver that allocates memory at its first use, and fails there."""
    return OutOfMemoryError(
        f"{name} has no room for a buffer that is used for the first time "
        f"({error}); smaller batches would help"
    )


def failure(name: str, what: str, error: Exception) -> DeviceError | OutOfMemoryError:
    """Translates a driver's error."""
    if isinstance(error, binding().MemoryError):
        return out_of_memory(name, error)
    return DeviceError(
        f"{name}: {what} failed: {error}; where the driver has lost the device, what was on it "
        "is gone, and a new process can use it again"
    )


@contextmanager
def translated_errors(name: str, what: str) -> Iterator[None]:
    """Translates drivers' errors in the block. Raises: OutOfMemoryError; DeviceError."""
    try:
        yield
    except binding().Error as error:
        raise failure(name, what, error) from None


class OpenCLEvent(Event):
    """A marker in a queue with profiling."""

    def __init__(self, name: str, event: Any) -> None:
        self.name = name
        self.event = event

    def wait(self) -> None:
        """Waits for the marker. Raises: DeviceError."""
        with translated_errors(self.name, "waiting for what was launched"):
            self.event.wait()

    def seconds_since(self, earlier: OpenCLEvent) -> float:
        """By the device's clock."""
        self.wait()
        earlier.wait()
        return float(self.event.profile.end - earlier.event.profile.end) * 1e-9


class OpenCLQueue(Queue):
    """The in-order queue of one device."""

    def __init__(self, name: str, queue: Any) -> None:
        self.name = name
        self.queue = queue

    def signal(self) -> OpenCLEvent:
        """A marker after all enqueued work. Raises: DeviceError."""
        with translated_errors(self.name, "a marker"):
            return OpenCLEvent(self.name, binding().enqueue_marker(self.queue))

    def wait(self, event: Event) -> None:
        """Lets the device wait for an event of the same context; the host waits for others."""
        if isinstance(event, OpenCLEvent) and event.event.context == self.queue.context:
            with translated_errors(self.name, "a barrier"):
                binding().enqueue_barrier(self.queue, wait_for=[event.event])
        else:
            event.wait()

    def copy(self, target: OpenCLHandle, source: OpenCLHandle, nbytes: int) -> bool:
        """Between memory objects of a context. Raises: OutOfMemoryError; DeviceError."""
        cl = binding()
        memory = cl.mem_info.CONTEXT
        same = target.memory.int_ptr == source.memory.int_ptr
        if same or target.memory.get_info(memory) != source.memory.get_info(memory):
            return False
        places = {"src_offset": source.offset, "dst_offset": target.offset}
        with translated_errors(self.name, "a copy"):
            cl.enqueue_copy(self.queue, target.memory, source.memory, byte_count=nbytes, **places)
            self.queue.flush()
        return True

    def finish(self) -> None:
        """Waits until the queue is empty. Raises: DeviceError."""
        with translated_errors(self.name, "what was launched"):
            self.queue.finish()


class OpenCLProgram(Program):
    """A kernel of a built program."""

    def __init__(self, name: str, kernel: Any, backend: OpenCLBackend) -> None:
        self.name = name
        self.kernel = kernel
        self.backend = backend
        self.lock = threading.Lock()

    def __call__(
        self, handles: tuple[Any, ...], vars: tuple[int, ...] = (), launch: Launch = ONCE
    ) -> None:
        """Puts a launch in the queue.

        Raises: InternalError for one that is none on work-groups; OutOfMemoryError; DeviceError.
        """
        cl = binding()
        if not isinstance(launch, Grid):
            raise InternalError(f"{self.name}: OpenCL has blocks of work-items, given {launch}")
        blocks, local = launch
        if 0 in blocks:
            return
        args: list[Any] = []
        for handle in handles:
            args += [handle.memory, np.int64(handle.offset)]
        args += [np.int64(value) for value in vars]
        items = tuple([g * n for g, n in zip(blocks, local, strict=True)])
        queue = self.backend.commands
        try:
            # Arguments belong to the kernel object, so two threads must not set them at once.
            with self.lock:
                self.kernel.set_args(*args)
                cl.enqueue_nd_range_kernel(queue, self.kernel, items, local)
            queue.flush()
        except cl.Error as error:
            what = f"kernel {self.name} with {blocks} blocks of {local} work-items"
            raise failure(self.backend.name, what, error) from None


class OpenCLBackend(Backend):
    """One OpenCL device with a context and an in-order queue of its own."""

    keeps_binaries = True
    tries_schedules = True

    def __init__(self, name: str, device: Any) -> None:
        cl = binding()
        self.device = device
        self.context = cl.Context([device])
        profiling = cl.command_queue_properties.PROFILING_ENABLE
        self.commands = cl.CommandQueue(self.context, device, properties=profiling)
        self.probed = probe(device)
        allocator = OpenCLAllocator(name, self.context, self.commands, device)
        super().__init__(name, allocator, OpenCLQueue(name, self.commands))

    @property
    def target(self) -> Target:
        """Target of the device."""
        return self.probed

    @property
    def options(self) -> list[str]:
        """Options for correctly rounded division and square root, if the device has them."""
        cl = binding()
        exact = self.device.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        return ["-cl-fp32-correctly-rounded-divide-sqrt"] if exact else []

    def compile(self, source: str) -> bytes:
        """OpenCL C as the driver's binary, from the disk cache if it is there.

        Raises: CompileError with the driver's message.
        """
        options = self.options
        digest = hashlib.blake2b(source.encode(), digest_size=16).hexdigest()
        key = f"opencl {self.probed.arch} {self.device.version} {options} {digest}"
        binary = object_cache.get(key)
        if binary is None:
            cl = binding()
            program = self.build(cl.Program(self.context, source), options)
            binary = bytes(program.get_info(cl.program_info.BINARIES)[0])
            object_cache.put(key, binary)
        return binary

    def build(self, program: Any, options: list[str]) -> Any:
        """Builds without pyopencl's own cache. Raises: CompileError."""
        cl = binding()
        try:
            with warnings.catch_warnings():
                # pyopencl warns about any output of the driver's compiler.
                warnings.simplefilter("ignore", cl.CompilerWarning)
                return program.build(options=options, devices=[self.device], cache_dir=False)
        except cl.RuntimeError as error:
            raise CompileError(
                f"{self.name}: the driver refused generated OpenCL C:\n{error}"
            ) from None

    def load(self, name: str, binary: bytes) -> Program:
        """The kernel `name`, ready to launch. Raises: CompileError."""
        cl = binding()
        try:
            program = cl.Program(self.context, [self.device], [binary])
            kernel = cl.Kernel(self.build(program, []), name)
        except (cl.LogicError, cl.RuntimeError) as error:
            raise CompileError(f"{self.name}: kernel {name} could not be loaded: {error}") from None
        # All scalars are 64-bit integers; declared dtypes let pyopencl pack them faster.
        return OpenCLProgram(name, kernel, self)
