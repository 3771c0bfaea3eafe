"""Enqueues programs, events and copies of Metal devices.

Receives handles, values of variables and sizes; encodes launches into the device's command buffers.
Recorded launches are in `metal/graph`.
"""

from __future__ import annotations

import ctypes
from typing import Any

from aster_ml.backend import ONCE, Event, Grid, Launch, Program, Queue
from aster_ml.errors import CompileError, DeviceError, InternalError
from aster_ml.runtime.metal import objc
from aster_ml.runtime.metal.api import api
from aster_ml.runtime.metal.context import Commands, MetalDevice, sizes_of
from aster_ml.runtime.metal.memory import MetalHandle
from aster_ml.runtime.metal.objc import POINTER, Object
from aster_ml.target.metal import MOST_BUFFERS

# Alignment of offsets and sizes of a copy (MTLBlitCommandEncoder, on macOS).
COPIED = 4


class MetalEvent(Event):
    """The end of the commands that were encoded before it."""

    def __init__(self, device: MetalDevice) -> None:
        self.device = device
        with objc.pool():
            self.commands: Commands | None = device.flush()

    def wait(self) -> None:
        """Waits for the device. Raises: DeviceError when commands failed."""
        if self.commands is not None:
            with objc.pool():
                self.commands.wait()

    def seconds_since(self, earlier: MetalEvent) -> float:
        """By the device's clock, without the time between command buffers."""
        self.wait()
        earlier.wait()
        after, before = self.commands, earlier.commands
        if after is None or after is before:
            return 0.0
        end = api().end_time(after.buffer.address)
        start = api().start_time(after.buffer.address)
        if before is not None:
            start = min(start, api().end_time(before.buffer.address))
        return max(float(end - start), 0.0)


class MetalQueue(Queue):
    """The commands of one device."""

    def __init__(self, device: MetalDevice) -> None:
        self.device = device

    def signal(self) -> MetalEvent:
        """An event after all enqueued work, which it commits."""
        return MetalEvent(self.device)

    def copy(self, target: MetalHandle, source: MetalHandle, nbytes: int) -> bool:
        """Copies between two buffers; False within one, where parts may overlap, and if unaligned.

        False too for memory of another queue, which might reuse it before the copy is done.
        """
        if target.buffer is source.buffer or source.device is not self.device:
            return False
        if (target.offset | source.offset | nbytes) % COPIED:
            return False
        device = self.device
        with objc.pool(), device.lock:
            commands = device.commands()
            commands.end_encoding()
            encoder = api().blit_encoder(commands.buffer.address)
            api().copy(
                encoder, source.buffer.address, source.offset,
                target.buffer.address, target.offset, nbytes,
            )  # fmt: skip
            api().end_encoding(encoder)
            commands.kept += [source.buffer, target.buffer]
            device.written(commands)
        return True

    def finish(self) -> None:
        """Waits until everything is done."""
        self.device.finish()


class MetalProgram(Program):
    """A kernel of a library as a pipeline.

    Its arguments are the buffers, and then each variable as a 64-bit integer.
    """

    def __init__(self, name: str, device: MetalDevice, library: Object) -> None:
        self.name = name
        self.device = device
        with objc.pool():
            function = Object(api().new_function(library.address, objc.string(name)))
            if not function:
                raise CompileError(f"{device.name}: the library has no kernel {name}")
            descriptor = objc.make("MTLComputePipelineDescriptor")
            api().set_function(descriptor.address, function.address)
            api().set_for_graphs(descriptor.address, True)
            error = POINTER(0)
            made = api().new_pipeline(
                device.device.address, descriptor.address, 0, None, ctypes.addressof(error)
            )
            if not made:
                raise CompileError(
                    f"{device.name}: kernel {name} becomes no pipeline: "
                    f"{objc.error_text(error.value)}"
                )
        self.pipeline = Object(made)
        self.most_threads = int(api().max_threads(made))
        shared = int(api().static_shared(made))
        most = int(api().shared_nbytes(device.device.address))
        if shared > most:
            raise DeviceError(
                f"{device.name}: kernel {name} needs {shared:,} bytes of threadgroup memory and "
                f"the device has {most:,}; smaller tiles would do (STAGE, LOCAL and UPCAST)"
            )

    def check(self, launch: Launch, arguments: int) -> None:
        """Checks that the device takes a launch. Raises: InternalError; DeviceError."""
        if not isinstance(launch, Grid):
            raise InternalError(f"{self.name}: Metal has blocks of threads, given {launch}")
        threads = 1
        for n in launch.items:
            threads *= n
        if threads > self.most_threads:
            raise DeviceError(
                f"{self.device.name}: kernel {self.name} has {threads} threads in a block and can "
                f"have {self.most_threads}; fewer LOCAL or UPCAST would do"
            )
        if arguments > MOST_BUFFERS:
            raise DeviceError(
                f"{self.device.name}: kernel {self.name} has {arguments} buffers and variables, "
                f"and Metal takes {MOST_BUFFERS}"
            )

    def __call__(
        self, handles: tuple[Any, ...], vars: tuple[int, ...] = (), launch: Launch = ONCE
    ) -> None:
        """Encodes a launch. Raises: InternalError; DeviceError."""
        self.check(launch, len(handles) + len(vars))
        assert isinstance(launch, Grid)
        if 0 in launch.blocks:
            return
        device, send = self.device, api()
        with objc.pool(), device.lock:
            commands = device.commands()
            encoder = commands.compute()
            send.set_pipeline(encoder, self.pipeline.address)
            for i, handle in enumerate(handles):
                send.set_buffer(encoder, handle.buffer.address, handle.offset, i)
            for i, value in enumerate(vars, len(handles)):
                number = ctypes.c_int64(value)
                send.set_bytes(encoder, ctypes.addressof(number), 8, i)
            send.dispatch(encoder, sizes_of(launch.blocks), sizes_of(launch.items))
            # A command buffer keeps its buffers and pipelines alive.
            device.written(commands)
