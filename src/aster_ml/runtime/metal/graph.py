"""Replays recorded launches of a Metal device as one indirect command buffer.

Receives calls; returns a graph that replays them with one command. Variables are in a buffer of
their own, since indirect commands take buffers only. A barrier before each launch keeps the order
of the calls. A change of memory or sizes changes one command, after the last replay is done,
because the device reads commands while they run.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from aster_ml.backend import Call, Graph, Grid, Launch
from aster_ml.errors import DeviceError
from aster_ml.runtime.metal import objc
from aster_ml.runtime.metal.api import api
from aster_ml.runtime.metal.context import Commands, sizes_of
from aster_ml.runtime.metal.memory import MetalAllocator, MetalHandle
from aster_ml.runtime.metal.objc import POINTER, Object, Range, Size
from aster_ml.target.metal import MOST_BUFFERS

# MTLIndirectCommandTypeConcurrentDispatch, and MTLResourceUsageRead with Write.
CONCURRENT_DISPATCH, READ_AND_WRITE = 32, 3
# Offset between variables: the alignment of constant buffers on any device.
VARIABLE_NBYTES = 256
# Largest number of commands in an indirect command buffer.
MAX_COMMANDS = 16384


def can_record(calls: Sequence[Call]) -> bool:
    """Whether Metal can record the calls: there are some, with few enough arguments."""
    return len(calls) <= MAX_COMMANDS and all(
        isinstance(call.launch, Grid)
        and 0 not in call.launch.blocks
        and len(call.handles) + len(call.vars) <= MOST_BUFFERS
        for call in calls
    )


class MetalGraph(Graph):
    """Launches of one device that replay as one."""

    def __init__(self, allocator: MetalAllocator, calls: Sequence[Call]) -> None:
        self.allocator = allocator
        self.device = allocator.metal
        self.programs: list[Any] = [call.program for call in calls]
        self.launches: list[Any] = [call.launch for call in calls]
        self.handles = [list(call.handles) for call in calls]
        self.variable_counts = [len(call.vars) for call in calls]
        self.first_variable: list[int] = []
        values: list[int] = []
        for call in calls:
            call.program.check(call.launch, len(call.handles) + len(call.vars))  # type: ignore[attr-defined]
            self.first_variable.append(len(values))
            values += call.vars
        self.variables = allocator.alloc_block(max(len(values), 1) * VARIABLE_NBYTES)
        for number, value in enumerate(values):
            self.place(number).value = value
        self.make(len(calls))
        for number in range(len(calls)):
            self.write(number)
        self.last: Commands | None = None

    def make(self, count: int) -> None:
        """Creates the indirect command buffer. Raises: DeviceError where the device has none."""
        send = api()
        with objc.pool():
            descriptor = objc.make("MTLIndirectCommandBufferDescriptor")
            send.set_types(descriptor.address, CONCURRENT_DISPATCH)
            send.set_inherits_buffers(descriptor.address, False)
            send.set_inherits_pipeline(descriptor.address, False)
            send.set_most_buffers(descriptor.address, MOST_BUFFERS)
            self.commands = Object(
                send.new_commands(self.device.device.address, descriptor.address, count, 0)
            )
        if not self.commands:
            raise DeviceError(f"{self.device.name} gives no indirect command buffer")

    def place(self, number: int) -> ctypes.c_int64:
        """The word of a variable in the buffer of variables."""
        return ctypes.c_int64.from_address(self.variables.address + number * VARIABLE_NBYTES)

    def write(self, number: int) -> None:
        """Encodes a call as a command; an empty launch is no command."""
        send, handles, launch = api(), self.handles[number], self.launches[number]
        with objc.pool():
            command = send.command(self.commands.address, number)
            if 0 in launch.blocks:
                send.reset(command)
                return
            send.set_pipeline(command, self.programs[number].pipeline.address)
            for i, handle in enumerate(handles):
                send.set_kernel_buffer(command, handle.buffer.address, handle.offset, i)
            first = self.first_variable[number]
            for i in range(self.variable_counts[number]):
                offset = (first + i) * VARIABLE_NBYTES
                buffer = self.variables.buffer.address
                send.set_kernel_buffer(command, buffer, offset, len(handles) + i)
            send.set_sizes(command, sizes_of(launch.blocks), sizes_of(launch.items))
            send.set_barrier(command)

    def finish_replay(self) -> None:
        """Waits for the last replay, which reads the commands and variables."""
        if self.last is not None:
            last, self.last = self.last, None
            with objc.pool(), self.device.lock:
                if self.device.open is last:
                    self.device.flush()
                last.wait()

    def set_handle(self, call: int, slot: int, handle: MetalHandle) -> None:
        """Changes the memory of a call's argument."""
        self.finish_replay()
        self.handles[call][slot] = handle
        self.__dict__.pop("resources", None)
        if 0 in self.launches[call].blocks:
            return
        with objc.pool():
            command = api().command(self.commands.address, call)
            api().set_kernel_buffer(command, handle.buffer.address, handle.offset, slot)

    def set_var(self, call: int, slot: int, value: int) -> None:
        """Changes the value of a call's variable number `slot`."""
        place = self.place(self.first_variable[call] + slot)
        if place.value != value:
            self.finish_replay()
            place.value = value

    def set_launch(self, call: int, launch: Launch) -> None:
        """Changes the launch sizes of a call."""
        if launch == self.launches[call]:
            return
        self.programs[call].check(launch, len(self.handles[call]))
        self.finish_replay()
        self.launches[call] = launch
        self.write(call)

    @functools.cached_property
    def resources(self) -> Any:
        """All buffers of the commands, which must be declared to the encoder."""
        buffers = {h.buffer.address: None for handles in self.handles for h in handles}
        named = [*buffers, self.variables.buffer.address]
        return (POINTER * len(named))(*named)

    def run(self) -> None:
        """Encodes a replay. Raises: DeviceError when the device is lost."""
        send, device = api(), self.device
        with objc.pool(), device.lock:
            commands = device.commands()
            # An encoder of its own synchronizes with other users of the declared memory.
            commands.end_encoding()
            encoder = commands.compute()
            resources = self.resources
            send.use(encoder, ctypes.addressof(resources), len(resources), READ_AND_WRITE)
            if device.names_pipelines:
                for pipeline in {p.pipeline.address for p in self.programs}:
                    send.set_pipeline(encoder, pipeline)
                    send.dispatch(encoder, Size(0, 0, 0), Size(0, 0, 0))
            send.execute(encoder, self.commands.address, Range(0, len(self.handles)))
            commands.end_encoding()
            commands.kept.append(self)
            self.last = commands
            device.written(commands)
