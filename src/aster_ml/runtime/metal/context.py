"""Owns a Metal device and its command queue, and translates errors.

Launches are encoded into a command buffer, which is committed when it is full, or when its results
are waited for. Launches of a command buffer run in order. Memory and programs do not belong here.
"""

from __future__ import annotations

import threading
from typing import Any

from aster_ml.errors import DeviceError, InternalError
from aster_ml.runtime.metal import objc
from aster_ml.runtime.metal.api import api
from aster_ml.runtime.metal.objc import POINTER, Object, Size

# Launches in a command buffer, and command buffers in flight.
BATCH, MAX_COMMAND_BUFFERS = 32, 1024
# MTLCommandBufferStatus of a failure, and MTLCommandBufferError of devices that are gone.
FAILED, GONE = 5, (4, 11)
# Other codes of MTLCommandBufferError -> message.
MEANINGS = {
    2: "a kernel ran longer than the system lets it; smaller ones would do",
    3: "a kernel touched memory that is not its own",
    8: "there is no room for what the kernels use; smaller batches would help",
    12: "a kernel has more on its stack than there is room for",
}
# MTLGPUFamily: M1 and A14 or later, with warps of 32 threads and matrix products; M3 and A17 or
# later.
APPLE7, APPLE9 = 1007, 1009


def default_device() -> Object | None:
    """The system's device; None where there is none. Raises: OSError without Apple's libraries."""
    objc.library("Foundation")
    objc.library("CoreGraphics")
    found = objc.function("Metal", "MTLCreateSystemDefaultDevice", POINTER)()
    return Object(found) if found else None


def sizes_of(sizes: tuple[Any, ...]) -> Size:
    """Sizes in three dimensions. Raises: InternalError where there are more."""
    if len(sizes) > 3:
        raise InternalError(f"Metal has blocks in three dimensions, given {sizes}")
    return Size(*(*sizes, 1, 1, 1)[:3])


class Commands:
    """A command buffer: open for encoding, then committed, then completed."""

    def __init__(self, device: MetalDevice) -> None:
        self.device = device
        self.buffer = Object(api().command_buffer(device.queue.address), keep=True)
        if not self.buffer:
            raise DeviceError(f"{device.name} gives no command buffer; a new process may get one")
        self.encoder: int | None = None
        self.count = 0
        # Objects that must stay alive until it is completed.
        self.kept: list[Any] = []

    def compute(self) -> int:
        """The encoder of launches."""
        if self.encoder is None:
            self.encoder = api().compute_encoder(self.buffer.address)
            objc.message("retain", POINTER)(self.encoder)
        return self.encoder

    def end_encoding(self) -> None:
        """Closes the encoder, if one is open."""
        if self.encoder is not None:
            api().end_encoding(self.encoder)
            objc.message("release", None)(self.encoder)
            self.encoder = None

    def wait(self) -> None:
        """Waits until it is completed. Raises: DeviceError when it failed."""
        api().wait(self.buffer.address)
        self.kept = []
        if api().status(self.buffer.address) == FAILED:
            with objc.pool():
                error = api().error(self.buffer.address)
                text, code = objc.error_text(error), api().code(error) if error else 0
            raise self.device.fault(text, int(code))


class MetalDevice:
    """A device with its only command queue."""

    def __init__(self, name: str, device: Object) -> None:
        self.name = name
        self.device = device
        self.lost = ""
        self.lock = threading.RLock()
        self.queue = Object(api().new_queue(device.address, MAX_COMMAND_BUFFERS))
        if not self.queue:
            raise DeviceError(f"{name} gives no command queue")
        self.open: Commands | None = None
        # Whether pipelines of indirect commands must be set in the encoder too, or the device hangs
        # (the first two generations).
        self.names_pipelines = not self.is_of(APPLE9)
        # Committed command buffers, oldest first; each failure is reported once.
        self.on_the_way: list[Commands] = []

    def is_of(self, family: int) -> bool:
        """Whether the device supports an MTLGPUFamily."""
        return bool(api().supports_family(self.device.address, family))

    def fault(self, text: str, code: int) -> DeviceError:
        """The error of failed commands; a lost device is marked."""
        if code in GONE:
            self.lost = text
        meaning = f" ({MEANINGS[code]})" if code in MEANINGS else ""
        return DeviceError(
            f"{self.name}: kernels failed: {text}{meaning}. Their results are not there; "
            "MTL_DEBUG_LAYER=1 and MTL_SHADER_VALIDATION=1 in the environment name the kernel"
        )

    def commands(self) -> Commands:
        """The open command buffer; called with the lock held.

        Raises: DeviceError when the device is lost.
        """
        if self.lost:
            raise DeviceError(f"{self.name} was lost ({self.lost}); a new process can use it again")
        if self.open is None:
            self.open = Commands(self)
        return self.open

    def written(self, commands: Commands) -> None:
        """Counts an encoded launch; commits a full command buffer."""
        commands.count += 1
        if commands.count >= BATCH:
            self.flush()

    def flush(self) -> Commands | None:
        """Commits encoded launches; returns the last command buffer in flight, if there is one."""
        with self.lock:
            commands, self.open = self.open, None
            if commands is not None:
                commands.end_encoding()
                api().commit(commands.buffer.address)
                self.on_the_way.append(commands)
                # Completed command buffers are released before the last is waited for.
                if len(self.on_the_way) > BATCH:
                    self.on_the_way.pop(0).wait()
            return self.on_the_way[-1] if self.on_the_way else None

    def finish(self) -> None:
        """Waits for all work. Raises: DeviceError for a failure since the last call."""
        with objc.pool(), self.lock:
            self.flush()
            on_the_way, self.on_the_way = self.on_the_way, []
            errors = []
            for commands in on_the_way:
                try:
                    commands.wait()
                except DeviceError as error:
                    errors.append(error)
        if errors:
            raise errors[0]
