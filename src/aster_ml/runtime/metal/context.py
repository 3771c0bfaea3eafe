"""Owns a Metal device and its command queue, and translates errors.

Launches are written into one command buffer after the other; each starts when it is full, or when
somebody waits. Within one, every launch begins after the one before it. Memory and programs do not
belong here.
"""

from __future__ import annotations

import threading
from typing import Any

from aster_ml.errors import DeviceError, InternalError
from aster_ml.runtime.metal import objc
from aster_ml.runtime.metal.api import api
from aster_ml.runtime.metal.objc import POINTER, Object, Size

# So many launches start together where nobody waits before, and so many buffers may be on the way.
BATCH, MAX_COMMAND_BUFFERS = 32, 1024
# MTLCommandBufferStatus of a failure, and MTLCommandBufferError of devices that are gone.
FAILED, GONE = 5, (4, 11)
# What other codes of MTLCommandBufferError mean to who reads them.
MEANINGS = {
    2: "a kernel ran longer than the system lets it; smaller ones would do",
    3: "a kernel touched memory that is not its own",
    8: "there is no room for what the kernels use; smaller batches would help",
    12: "a kernel has more on its stack than there is room for",
}
# MTLGPUFamily: of M1 and A14 on warps are 32 threads and multiply matrices; and of M3 and A17 on.
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
    """A command buffer: open while launches are written into it, then on the way, then done."""

    def __init__(self, device: MetalDevice) -> None:
        self.device = device
        self.buffer = Object(api().command_buffer(device.queue.address), keep=True)
        if not self.buffer:
            raise DeviceError(f"{device.name} gives no command buffer; a new process may get one")
        self.encoder: int | None = None
        self.count = 0
        # What has to live until it is done.
        self.kept: list[Any] = []

    def compute(self) -> int:
        """The encoder of launches."""
        if self.encoder is None:
            self.encoder = api().compute_encoder(self.buffer.address)
            objc.message("retain", POINTER)(self.encoder)
        return self.encoder

    def end_encoding(self) -> None:
        """Closes the encoder, where one is open."""
        if self.encoder is not None:
            api().end_encoding(self.encoder)
            objc.message("release", None)(self.encoder)
            self.encoder = None

    def wait(self) -> None:
        """Returns when the device is done with it. Raises: DeviceError when that failed."""
        api().wait(self.buffer.address)
        self.kept = []
        if api().status(self.buffer.address) == FAILED:
            with objc.pool():
                error = api().error(self.buffer.address)
                text, code = objc.error_text(error), api().code(error) if error else 0
            raise self.device.fault(text, int(code))


class MetalDevice:
    """A device with the queue that all its work is in."""

    def __init__(self, name: str, device: Object) -> None:
        self.name = name
        self.device = device
        self.lost = ""
        self.lock = threading.RLock()
        self.queue = Object(api().new_queue(device.address, MAX_COMMAND_BUFFERS))
        if not self.queue:
            raise DeviceError(f"{name} gives no command queue")
        self.open: Commands | None = None
        # Whether it hangs at pipelines that only commands of an indirect buffer name, as the first
        # two generations do.
        self.names_pipelines = not self.is_of(APPLE9)
        # What was started, oldest first; a failure of any of them is told once.
        self.on_the_way: list[Commands] = []

    def is_of(self, family: int) -> bool:
        """Whether it can do what an MTLGPUFamily can."""
        return bool(api().supports_family(self.device.address, family))

    def fault(self, text: str, code: int) -> DeviceError:
        """The error of commands that failed; noted where the device is gone."""
        if code in GONE:
            self.lost = text
        meaning = f" ({MEANINGS[code]})" if code in MEANINGS else ""
        return DeviceError(
            f"{self.name}: kernels failed: {text}{meaning}. Their results are not there; "
            "MTL_DEBUG_LAYER=1 and MTL_SHADER_VALIDATION=1 in the environment name the kernel"
        )

    def commands(self) -> Commands:
        """The command buffer that is open; call it with the lock held.

        Raises: DeviceError when the device is gone.
        """
        if self.lost:
            raise DeviceError(f"{self.name} was lost ({self.lost}); a new process can use it again")
        if self.open is None:
            self.open = Commands(self)
        return self.open

    def written(self, commands: Commands) -> None:
        """Counts a launch; starts them where there are enough."""
        commands.count += 1
        if commands.count >= BATCH:
            self.flush()

    def flush(self) -> Commands | None:
        """Starts what was written; returns the last that was started, unless that is done."""
        with self.lock:
            commands, self.open = self.open, None
            if commands is not None:
                commands.end_encoding()
                api().commit(commands.buffer.address)
                self.on_the_way.append(commands)
                # Those that are done are not held until somebody waits for the last.
                if len(self.on_the_way) > BATCH:
                    self.on_the_way.pop(0).wait()
            return self.on_the_way[-1] if self.on_the_way else None

    def finish(self) -> None:
        """Returns when everything is done. Raises: DeviceError for what failed since the last."""
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
