"""Compiles WebGPU shaders, launches them, and replays recorded launches.

Receives WGSL whose first line describes its launches (`renderer/wgsl/renderer`), handles, values of
variables and numbers of blocks; returns pipelines, bind groups and numbers for a dispatch.
`webgpu/device` submits them.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from aster_ml.allocator import format_bytes
from aster_ml.backend import ONCE, Call, Graph, Grid, Launch, Program
from aster_ml.errors import DeviceError, InternalError

# Alignment of bindings on every device.
BINDING_NBYTES = 256
# Largest element of a binding in bytes.
WORD_NBYTES = 16
# Largest number of blocks in a dimension of a dispatch.
MAX_BLOCKS = 65535
# Cached bind groups of a program, and cached argument buffers of a device.
MAX_GROUPS = 256
# Declaration of shared memory in a source, and the bytes of an element.
SHARED = re.compile(r"^var<workgroup> \w+: array<([\w<>]+), (\d+)>;$", re.MULTILINE)
ELEMENT_NBYTES = {
    "f16": 2, "vec2<u32>": 8, "vec4<f16>": 8, "vec4<f32>": 16, "vec4<i32>": 16, "vec4<u32>": 16,
    "vec4<bool>": 16,
}  # fmt: skip
# WebGPU constants: the visibility of a binding, and the usage of argument buffers.
COMPUTE, UNIFORM, COPY_DST = 4, 0x40, 8


class Handle:
    """Memory from byte `offset` of a buffer on."""

    __slots__ = ("buffer", "nbytes", "offset")

    def __init__(self, buffer: Any, offset: int, nbytes: int) -> None:
        self.buffer = buffer
        self.offset = offset
        self.nbytes = nbytes


class Dispatch(NamedTuple):
    """A dispatch of a pipeline with a bind group."""

    pipeline: Any
    group: Any
    blocks: tuple[int, int, int]


class LaunchFacts(NamedTuple):
    """Facts of a launch, from the first line of a source.

    `buffers` are (bytes of an element, whether it is written), `variables` the words of each,
    `words`, unless empty, the alignment of each buffer in bytes.
    """

    buffers: tuple[tuple[int, int], ...]
    variables: tuple[int, ...]
    words: tuple[int, ...] = ()

    @staticmethod
    def parse(source: str) -> LaunchFacts:
        """Parses the facts of a source. Raises: InternalError where it has none."""
        line = source.partition("\n")[0]
        if not line.startswith("// {"):
            raise InternalError(f"webgpu: the source begins with {line!r}, not with its facts")
        found = json.loads(line[3:])
        buffers = tuple([(unit, written) for unit, written in found["buffers"]])
        return LaunchFacts(buffers, tuple(found["variables"]), tuple(found.get("words", ())))

    def are_aligned(self, offsets: Sequence[int]) -> bool:
        """Whether all buffers are aligned as the source expects."""
        return not any([at % nbytes for at, nbytes in zip(offsets, self.words)])

    def arguments(self, offsets: Sequence[int], vars: Sequence[int]) -> bytes:
        """The uniform: zero, offsets of buffers in their bindings, variables."""
        words = [0]
        for at, (unit, _) in zip(offsets, self.buffers, strict=True):
            if at % unit:
                raise DeviceError(
                    f"WEBGPU: a view begins at byte {at} of elements of {unit} bytes; "
                    "a copy (clone) begins at one"
                )
            words.append(at // unit)
        for value, count in zip(vars, self.variables, strict=True):
            words += [value & 0xFFFFFFFF, value >> 32 & 0xFFFFFFFF][:count]
        words += [0] * (-len(words) % 4)
        return struct.pack(f"<{len(words)}I", *words)

    @property
    def argument_nbytes(self) -> int:
        """Bytes of the uniform."""
        words = 1 + len(self.buffers) + sum(self.variables)
        return -(-words // 4) * 16


def shared_nbytes(source: str) -> int:
    """Bytes of memory that a block of a source's kernel shares."""
    arrays = SHARED.findall(source)
    return sum([ELEMENT_NBYTES.get(kind, 4) * int(size) for kind, size in arrays])


class Shader:
    """A pipeline and the layout of its bind group."""

    def __init__(self, device: Any, source: str) -> None:
        facts = LaunchFacts.parse(source)
        kinds = ["storage" if written else "read-only-storage" for _, written in facts.buffers]
        if "<storage, read>" not in source:
            kinds = ["storage"] * len(kinds)
        self.layout = device.create_bind_group_layout(
            entries=[
                {"binding": i, "visibility": COMPUTE, "buffer": {"type": kind}}
                for i, kind in enumerate(["uniform", *kinds])
            ]
        )
        self.pipeline = device.create_compute_pipeline(
            layout=device.create_pipeline_layout(bind_group_layouts=[self.layout]),
            compute={"module": device.create_shader_module(code=source), "entry_point": "main"},
        )


class WebGpuProgram(Program):
    """A kernel, with the bind groups of its latest launches."""

    def __init__(self, name: str, source: str, shader: Shader, backend: Any) -> None:
        self.name = name
        self.source = source
        self.facts = LaunchFacts.parse(source)
        self.shader = shader
        # Variants of the kernel: for a buffer that is bound both read and written, and for
        # unaligned buffers.
        self.others: dict[tuple[bool, bool], Shader] = {}
        self.backend = backend
        self.groups: dict[Any, Dispatch | None] = {}

    def __call__(
        self, handles: tuple[Any, ...], vars: tuple[int, ...] = (), launch: Launch = ONCE
    ) -> None:
        """Adds a launch to the batch.

        Raises: InternalError for one that is none on work-groups; OutOfMemoryError; DeviceError.
        """
        blocks = self.blocks_of(launch)
        key = (*[(h.buffer, h.offset, h.nbytes) for h in handles], vars, blocks)
        found = self.groups.get(key, self)
        if found is self:
            if len(self.groups) >= MAX_GROUPS:
                self.groups.clear()
            with self.backend.lock:
                found = self.groups[key] = self.dispatch(handles, vars, blocks)
        if found is not None:
            self.backend.put(found)

    def blocks_of(self, launch: Launch) -> tuple[int, ...]:
        """The numbers of blocks of a launch."""
        if not isinstance(launch, Grid):
            raise InternalError(f"{self.name}: WebGPU has blocks of work-items, given {launch}")
        return tuple(launch.blocks)

    def dispatch(
        self, handles: Sequence[Handle], vars: Sequence[int], blocks: Sequence[int]
    ) -> Dispatch | None:
        """A launch with arguments of its own; None for one without blocks."""
        if 0 in blocks:
            return None
        device = self.backend.device
        data = self.arguments(handles, vars)
        usage = UNIFORM | COPY_DST
        uniform = device.create_buffer(size=len(data), usage=usage)
        device.queue.write_buffer(uniform, 0, data)
        shader = self.shader_for(handles)
        group = self.bind(shader, handles, uniform, 0)
        return Dispatch(shader.pipeline, group, self.size_of(blocks))

    def size_of(self, blocks: Sequence[int]) -> tuple[int, int, int]:
        """Blocks in three dimensions. Raises: DeviceError for more than there can be."""
        x, y, z = found = (*blocks, 1, 1, 1)[:3]
        if max(found) > MAX_BLOCKS:
            raise DeviceError(
                f"{self.backend.name}: kernel {self.name} has {found} blocks; WebGPU has at most "
                f"{MAX_BLOCKS} in a dimension; smaller tensors would do"
            )
        return x, y, z

    def arguments(self, handles: Sequence[Handle], vars: Sequence[int]) -> bytes:
        """The uniform of a launch."""
        offsets = [h.offset % BINDING_NBYTES for h in handles]
        return self.facts.arguments(offsets, vars)

    def shader_for(self, handles: Sequence[Handle]) -> Shader:
        """The shader for this memory.

        A buffer must not be bound both read-only and writable in a launch. Temporaries share one
        buffer, so then all bindings are writable.
        """
        pairs = list(zip(handles, self.facts.buffers, strict=True))
        written = {id(h.buffer) for h, (_, is_written) in pairs if is_written}
        shared = any([id(h.buffer) in written for h, (_, is_written) in pairs if not is_written])
        aligned = self.facts.are_aligned([h.offset for h in handles])
        if aligned and not shared:
            return self.shader
        key = shared, aligned
        if key not in self.others:
            self.others[key] = self.backend.shader(shader_variant(self.source, *key))
        return self.others[key]

    def bind(self, shader: Shader, handles: Sequence[Handle], uniform: Any, at: int) -> Any:
        """A bind group. Raises: DeviceError for a buffer that is larger than a binding."""
        size = self.facts.argument_nbytes
        entries: list[dict[str, Any]] = [
            {"binding": 0, "resource": {"buffer": uniform, "offset": at, "size": size}}
        ]
        most = self.backend.limits["max-storage-buffer-binding-size"]
        for i, h in enumerate(handles, 1):
            first = h.offset // BINDING_NBYTES * BINDING_NBYTES
            nbytes = max(-(-(h.offset - first + h.nbytes) // WORD_NBYTES), 1) * WORD_NBYTES
            if nbytes > most:
                raise DeviceError(
                    f"{self.backend.name}: kernel {self.name} works on a buffer of "
                    f"{format_bytes(h.nbytes)}; this device lets a kernel see "
                    f"{format_bytes(most)} of one; smaller batches, or splitting the tensor, "
                    "would help"
                )
            resource = {"buffer": h.buffer, "offset": first, "size": nbytes}
            entries.append({"binding": i, "resource": resource})
        return self.backend.guarded(
            lambda: self.backend.device.create_bind_group(layout=shader.layout, entries=entries)
        )


def shader_variant(source: str, shared: bool, aligned: bool) -> str:
    """The source with all bindings writable (`shared`), or for unaligned buffers.

    Lines that assume whole words end in `//-`, lines for unaligned buffers begin with `//| `
    (`renderer/wgsl/memory`).
    """
    if not aligned:
        lines = [line for line in source.split("\n") if not line.endswith(" //-")]
        source = "\n".join([line.removeprefix("//| ") for line in lines])
    if shared:
        source = source.replace("var<storage, read>", "var<storage, read_write>")
    return source


class Recorded:
    """A call of a graph: its arguments, and a cache of its bind groups."""

    def __init__(self, call: Call, at: int) -> None:
        self.program: WebGpuProgram = call.program  # type: ignore[assignment]
        self.handles = list(call.handles)
        self.vars = list(call.vars)
        self.blocks = self.program.blocks_of(call.launch)
        self.at = at
        self.groups: dict[Any, tuple[Any, Any]] = {}


class WebGpuGraph(Graph):
    """Launches in one pass, with arguments in one buffer.

    A run renews only what has changed: bind groups for other memory (the latest are cached), and
    arguments for other numbers.
    """

    def __init__(self, calls: Sequence[Call], backend: Any) -> None:
        self.backend = backend
        self.calls: list[Recorded] = []
        nbytes = 0
        for call in calls:
            recorded = Recorded(call, nbytes)
            self.calls.append(recorded)
            size = recorded.program.facts.argument_nbytes
            nbytes += -(-size // BINDING_NBYTES) * BINDING_NBYTES
        self.data = bytearray(max(nbytes, BINDING_NBYTES))
        self.uniform = backend.device.create_buffer(size=len(self.data), usage=UNIFORM | COPY_DST)
        self.changed = set(range(len(self.calls)))
        self.dispatches: list[Dispatch | None] = [None] * len(self.calls)

    def set_handle(self, call: int, slot: int, handle: Any) -> None:
        """Changes the memory of a call's argument."""
        self.calls[call].handles[slot] = handle
        self.changed.add(call)

    def set_var(self, call: int, slot: int, value: int) -> None:
        """Changes the value of a call's variable number `slot`."""
        self.calls[call].vars[slot] = value
        self.changed.add(call)

    def set_launch(self, call: int, launch: Launch) -> None:
        """Changes the launch sizes of a call."""
        c = self.calls[call]
        c.blocks = c.program.blocks_of(launch)
        self.changed.add(call)

    def renew(self) -> bool:
        """Renews changed launches; returns whether any argument has changed."""
        differs = False
        for number in self.changed:
            c = self.calls[number]
            program = c.program
            data = program.arguments(c.handles, c.vars)
            if self.data[c.at : c.at + len(data)] != data:
                self.data[c.at : c.at + len(data)] = data
                differs = True
            if 0 in c.blocks:
                self.dispatches[number] = None
                continue
            key = tuple([(h.buffer, h.offset, h.nbytes) for h in c.handles])
            found = c.groups.get(key)
            if found is None:
                if len(c.groups) >= MAX_GROUPS:
                    c.groups.clear()
                shader = program.shader_for(c.handles)
                group = program.bind(shader, c.handles, self.uniform, c.at)
                found = c.groups[key] = shader.pipeline, group
            self.dispatches[number] = Dispatch(*found, program.size_of(c.blocks))
        self.changed.clear()
        return differs

    def run(self) -> None:
        """Puts all launches into the device's queue."""
        backend = self.backend
        with backend.lock:
            differs = bool(self.changed) and self.renew()
            backend.flush()
            if differs:
                backend.guarded(
                    lambda: backend.device.queue.write_buffer(self.uniform, 0, self.data)
                )
            backend.run([d for d in self.dispatches if d is not None])
