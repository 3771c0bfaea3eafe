"""Opens WEBGPU: kernels on any GPU with Vulkan, Direct3D 12 or Metal, through wgpu.

Finds adapters, requests all their features, allocates memory, and submits launches, which are in
`webgpu/program`. A handle is a buffer and a byte offset. Launches are batched until a copy, an
event, or a full batch, and submitted in one pass, since a submission costs as much as many
launches. wgpu is imported on the first use.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from aster_ml.allocator import PooledAllocator, format_bytes
from aster_ml.backend import Backend, Call, Event, Graph, Program, Queue
from aster_ml.errors import CompileError, DeviceError, OutOfMemoryError
from aster_ml.runtime.host_queue import HostEvent
from aster_ml.runtime.webgpu.program import (
    Dispatch,
    Handle,
    LaunchFacts,
    Shader,
    WebGpuGraph,
    WebGpuProgram,
    shared_nbytes,
)
from aster_ml.target import GPU, INTEGERS, PLAIN_OPS, Target

DOC = "graphics processors through WebGPU (Vulkan, Direct3D 12, Metal)"

# Implementations may flush these (WGSL, "Floating Point Evaluation").
FLUSHED = frozenset({"float16", "float32"})
# Functions with an error that WGSL bounds; drivers compute others with too large errors.
NATIVE_OPS = (PLAIN_OPS - {"MULACC"}) | {"EXP2"}
FEATURES = ("shader-f16", "timestamp-query")
# This driver silently ends loops after so many iterations in total: its LP_MAX_TGSI_LOOP_ITERATIONS
# (Mesa, gallivm/lp_bld_limits.h).
LLVMPIPE, LLVMPIPE_TURNS = "llvmpipe", 65_535
# Largest number of launches in a batch.
MAX_WAITING = 64
# What the limits of WebGPU promise at least, where an adapter says nothing.
RANKS = {"DiscreteGPU": 0, "IntegratedGPU": 1, "VirtualGPU": 2, "Unknown": 3, "CPU": 4}
BACKENDS = ("Vulkan", "Metal", "D3D12")


@functools.cache
def binding() -> ModuleType:
    """wgpu."""
    import wgpu

    module: ModuleType = wgpu
    return module


@functools.cache
def adapters() -> tuple[Any, ...]:
    """All adapters that run compute shaders: graphics processors first, CPUs last."""
    with runtime_folder():
        every = binding().gpu.enumerate_adapters_sync()
    found = [a for a in every if a.info["backend_type"] in BACKENDS]
    return tuple(sorted(found, key=lambda a: RANKS.get(a.info["adapter_type"], 3)))


@contextlib.contextmanager
def runtime_folder() -> Iterator[None]:
    """Sets XDG_RUNTIME_DIR while drivers load, which warn without it."""
    name = "XDG_RUNTIME_DIR"
    if name in os.environ:
        yield
        return
    # A private folder, in which no other user can create a socket.
    with tempfile.TemporaryDirectory(prefix="aster-") as folder:
        os.environ[name] = folder
        try:
            yield
        finally:
            del os.environ[name]


@functools.cache
def missing() -> str | None:
    """Names what WebGPU needs and does not find."""
    if importlib.util.find_spec("wgpu") is None:
        return "wgpu is not installed; pip install 'aster-ml[webgpu]' brings it"
    try:
        found = adapters()
    except (ImportError, OSError, RuntimeError) as error:
        return f"wgpu does not load ({error}); pip install --force-reinstall wgpu may help"
    if not found:
        return (
            "there is no adapter for Vulkan, Metal or Direct3D 12; the graphics driver brings one, "
            "and llvmpipe is one on any CPU: apt-get install mesa-vulkan-drivers libvulkan1"
        )
    return None


def open_backend(name: str) -> Backend:
    """The backend of "WEBGPU" or "WEBGPU:1"; numbers wrap around after the last adapter."""
    number = int(name.partition(":")[2] or 0)
    found = adapters()
    return WebGpuBackend(name, found[number % len(found)])


def one_word(text: str) -> str:
    """A driver's text without spaces and commas."""
    return "-".join(text.replace(",", " ").replace("=", " ").split())


def webgpu_target(limits: dict[str, int], half: bool, arch: str) -> Target:
    """Makes the Target of a device with these limits."""
    dtypes = set(INTEGERS) | {"float32"}
    if half:
        dtypes.add("float16")
    return Target(
        "WEBGPU", "wgsl", arch=arch, kind=GPU, move_bits=128, has_local=True, has_barrier=True,
        # WebGPU does not report the warp size; this one is used for bank conflicts only.
        warp=32,
        max_group=min(
            limits["max-compute-invocations-per-workgroup"],
            limits["max-compute-workgroup-size-x"],
        ),
        max_grid=(limits["max-compute-workgroups-per-dimension"],) * 3,
        local_bytes=limits["max-compute-workgroup-storage-size"],
        max_buffers=limits["max-storage-buffers-per-shader-stage"],
        index_bits=32, native_dtypes=frozenset(dtypes), native_ops=frozenset(NATIVE_OPS),
        flushes=FLUSHED,
        max_turns=LLVMPIPE_TURNS if LLVMPIPE in arch else 0,
    )  # fmt: skip


class WebGpuAllocator(PooledAllocator):
    """Pooled buffers of one device."""

    # Bytes of unused buffers in the pool; WebGPU does not report the size of memory.
    POOL = 1 << 30

    def __init__(self, backend: WebGpuBackend) -> None:
        super().__init__(backend.name, self.POOL)
        self.backend = backend
        # All buffers in use or in the pool: the garbage collector must not release a buffer before
        # the pool has it back.
        self.live: set[Any] = set()

    def alloc_block(self, nbytes: int) -> Handle:
        """A buffer of its own. Raises: MemoryError."""
        limits = self.backend.limits
        largest = limits["max-buffer-size"]
        # Kernels read whole words, and an empty part at the end needs one.
        wanted = nbytes + 16
        if wanted > largest:
            raise MemoryError(f"the device takes {format_bytes(largest)} in one piece")
        usage = binding().BufferUsage
        flags = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
        with self.backend.lock:
            buffer = self.backend.guarded(
                lambda: self.backend.device.create_buffer(size=wanted, usage=flags)
            )
        self.live.add(buffer)
        return Handle(buffer, 0, nbytes)

    def free_block(self, handle: Handle, nbytes: int) -> None:
        """Releases the buffer once batched launches are submitted."""
        self.live.discard(handle.buffer)
        self.backend.dead.append(handle.buffer)

    def copyin(self, handle: Handle, source: memoryview) -> None:
        """Host to device, after everything launched before. Memory is written in words."""
        first, last = handle.offset, handle.offset + len(source)
        if first == last:
            return
        low, high = first & -4, -(-last // 4) * 4
        data: Any = source
        with self.backend.lock:
            if (low, high) != (first, last):
                whole = bytearray(high - low)
                for at in {low, high - 4}:
                    whole[at - low : at - low + 4] = self.backend.read(handle.buffer, at, 4)
                whole[first - low : last - low] = source
                data = whole
            self.backend.flush()
            self.backend.guarded(
                lambda: self.backend.device.queue.write_buffer(handle.buffer, low, data)
            )

    def copyout(self, target: memoryview, handle: Handle) -> None:
        """Device to host, after everything launched before."""
        first, last = handle.offset, handle.offset + len(target)
        if first == last:
            return
        low, high = first & -4, -(-last // 4) * 4
        with self.backend.lock:
            data = self.backend.read(handle.buffer, low, high - low)
        target[:] = data[first - low : last - low]

    def offset(self, handle: Handle, byte_offset: int, nbytes: int) -> Handle:
        """A part of the same memory."""
        return Handle(handle.buffer, handle.offset + byte_offset, nbytes)


class DeviceEvent(Event):
    """A time that the device writes when it reaches the event."""

    def __init__(self, backend: WebGpuBackend) -> None:
        self.backend = backend
        self.seconds: float | None = None
        self.buffer = backend.write_time()

    def wait(self) -> None:
        """Reads the time, which waits for all earlier work."""
        if self.seconds is None:
            with self.backend.lock:
                raw = self.backend.read(self.buffer, 0, 8)
            self.seconds = int.from_bytes(bytes(raw), "little") * 1e-9

    def seconds_since(self, earlier: DeviceEvent) -> float:
        """By the device's clock."""
        self.wait()
        earlier.wait()
        assert self.seconds is not None
        assert earlier.seconds is not None
        return max(self.seconds - earlier.seconds, 0.0)


class WebGpuQueue(Queue):
    """The queue of one device, with a batch of launches."""

    def __init__(self, backend: WebGpuBackend) -> None:
        self.backend = backend

    def signal(self) -> Event:
        """An event after all enqueued work."""
        if self.backend.has_clock:
            return DeviceEvent(self.backend)
        self.backend.wait()
        return HostEvent()

    def copy(self, target: Handle, source: Handle, nbytes: int) -> bool:
        """Between two buffers of the device, in whole words."""
        places = (target.offset, source.offset, nbytes)
        same = target.buffer is source.buffer or target.buffer._device is not source.buffer._device
        if same or any([n % 4 for n in places]) or target.buffer._device is not self.backend.device:
            return False
        with self.backend.lock:
            self.backend.flush()
            encoder = self.backend.device.create_command_encoder()
            encoder.copy_buffer_to_buffer(
                source.buffer, source.offset, target.buffer, target.offset, nbytes
            )
            self.backend.submit(encoder)
        return True

    def finish(self) -> None:
        """Waits until the queue is empty."""
        self.backend.wait()


class WebGpuBackend(Backend):
    """One adapter with a device of its own."""

    keeps_binaries = True
    tries_schedules = True

    def __init__(self, name: str, adapter: Any) -> None:
        self.name = name
        self.adapter = adapter
        self.lock = threading.RLock()
        self.limits = dict(adapter.limits)
        features = [x for x in FEATURES if x in adapter.features]
        try:
            self.device = adapter.request_device_sync(
                required_features=features, required_limits=self.limits
            )
        except Exception as error:
            raise DeviceError(
                f"{name}: the adapter {adapter.info['device']} gives no device: {error}; a newer "
                "graphics driver may help"
            ) from None
        self.has_clock = "timestamp-query" in features
        info = adapter.info
        arch = one_word(f"{info['backend_type']} {info['device']} {info['description']}")
        self.probed = webgpu_target(self.limits, "shader-f16" in features, arch)
        self.waiting: list[Dispatch] = []
        self.dead: list[Any] = []
        self.shaders: dict[str, Shader] = {}
        self.word: Any = None
        super().__init__(name, WebGpuAllocator(self), WebGpuQueue(self))

    @property
    def target(self) -> Target:
        """Target of the device."""
        return self.probed

    # compiling

    def compile(self, source: str) -> bytes:
        """The source itself, checked by the driver. Raises: CompileError."""
        self.shaders[source] = self.shader(source)
        return source.encode()

    def shader(self, source: str) -> Shader:
        """A shader with its pipeline.

        Raises: CompileError; DeviceError for too many buffers, or too much shared memory, which
        some drivers do not check.
        """
        wgpu = binding()
        count, most = len(LaunchFacts.parse(source).buffers), self.probed.max_buffers
        if count > most:
            raise DeviceError(
                f"{self.name}: a kernel has {count} buffers, and this device lets one have {most}; "
                "computing parts of it first (contiguous) would do"
            )
        nbytes, room = shared_nbytes(source), self.probed.local_bytes
        if nbytes > room:
            raise DeviceError(
                f"{self.name}: a kernel needs {nbytes:,} bytes of shared memory in a block and the "
                f"device has {room:,}; smaller tiles (LOCAL, STAGE local) would do"
            )
        try:
            with self.lock:
                return Shader(self.device, source)
        except (wgpu.GPUValidationError, wgpu.GPUPipelineError, wgpu.GPUInternalError) as error:
            raise CompileError(f"{self.name}: wgpu refused generated WGSL:\n{error}") from None

    def load(self, name: str, binary: bytes) -> Program:
        """The kernel, ready to launch. Raises: CompileError."""
        source = binary.decode()
        shader = self.shaders.pop(source, None) or self.shader(source)
        return WebGpuProgram(name, source, shader, self)

    def make_graph(self, calls: Sequence[Call]) -> Graph | None:
        """The launches in one pass, with arguments in one buffer."""
        return WebGpuGraph(calls, self)

    # the queue

    def guarded(self, action: Any) -> Any:
        """Runs an action on the device and returns its result. Raises: MemoryError, DeviceError."""
        wgpu = binding()
        try:
            return action()
        except MemoryError as error:
            raise MemoryError(str(error)) from None
        except wgpu.GPUError as error:
            text = str(error)
            if "lost" in text.lower():
                text += "; what was on the device is gone, and a new process opens it again"
            raise DeviceError(f"{self.name}: {text}") from None

    def put(self, dispatch: Dispatch) -> None:
        """Adds a launch to the batch."""
        with self.lock:
            self.waiting.append(dispatch)
            if len(self.waiting) >= MAX_WAITING:
                self.flush()

    def flush(self) -> None:
        """Submits the batch; called with the lock held."""
        if self.waiting:
            now, self.waiting = self.waiting, []
            self.run(now)
        while self.dead:
            self.dead.pop().destroy()

    def run(self, dispatches: Sequence[Dispatch]) -> None:
        """Runs these launches in one pass; each sees writes of earlier ones."""
        encoder = self.device.create_command_encoder()
        one_pass = encoder.begin_compute_pass()
        last = None
        for pipeline, group, blocks in dispatches:
            if pipeline is not last:
                one_pass.set_pipeline(pipeline)
                last = pipeline
            one_pass.set_bind_group(0, group)
            one_pass.dispatch_workgroups(*blocks)
        one_pass.end()
        self.submit(encoder)

    def submit(self, encoder: Any) -> None:
        """Submits commands. Raises: OutOfMemoryError, DeviceError."""
        try:
            self.guarded(lambda: self.device.queue.submit([encoder.finish()]))
        except MemoryError as error:
            raise OutOfMemoryError(
                f"{self.name} has no room for what is launched ({error}); smaller batches would "
                "help"
            ) from None

    def read(self, buffer: Any, at: int, nbytes: int) -> memoryview:
        """Bytes of a buffer, after everything launched before; called with the lock held."""
        self.flush()
        try:
            found: memoryview = self.guarded(
                lambda: self.device.queue.read_buffer(buffer, at, nbytes)
            )
        except MemoryError as error:
            raise OutOfMemoryError(
                f"{self.name} has no room for a copy of {format_bytes(nbytes)} ({error})"
            ) from None
        return found

    def wait(self) -> None:
        """Waits for all work, by reading a word after it."""
        wgpu = binding()
        with self.lock:
            if self.word is None:
                usage = wgpu.BufferUsage
                self.word = self.device.create_buffer(size=4, usage=usage.COPY_SRC | usage.COPY_DST)
            self.read(self.word, 0, 4)

    def write_time(self) -> Any:
        """Enqueues a timestamp after all work; returns its buffer."""
        usage = binding().BufferUsage
        with self.lock:
            self.flush()
            queries = self.device.create_query_set(type="timestamp", count=1)
            size = self.limits["min-storage-buffer-offset-alignment"]
            buffer = self.device.create_buffer(
                size=max(size, 256), usage=usage.QUERY_RESOLVE | usage.COPY_SRC
            )
            encoder = self.device.create_command_encoder()
            one_pass = encoder.begin_compute_pass(
                timestamp_writes={"query_set": queries, "end_of_pass_write_index": 0}
            )
            one_pass.end()
            encoder.resolve_query_set(
                query_set=queries, first_query=0, query_count=1, destination=buffer,
                destination_offset=0,
            )  # fmt: skip
            self.submit(encoder)
            return buffer
