"""Declares what a device provides: loaded kernels, a queue, recorded graphs, a compiler, a Target.

Base classes for `runtime/`. Buffers and the registry of devices do not belong here.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from aster_ml.allocator import Allocator
from aster_ml.plugins import find_attribute
from aster_ml.target import Target


class ThreadParts(NamedTuple):
    """A launch on threads of the host: they share out the outermost range, of size `n`.

    It is divided in `parts`; what is one part runs on the calling thread.
    """

    n: Any = 1
    parts: int = 1


class Grid(NamedTuple):
    """A launch on work-groups: how many `blocks` in each dimension, and work-items of a block."""

    blocks: tuple[Any, ...]
    items: tuple[int, ...]


# How a kernel is spread over a device; its Target decides which of the two it is. Before the values
# of variables are known sizes may be expressions on them, in a launch they are numbers.
Launch = ThreadParts | Grid
ONCE = ThreadParts()


class Program(abc.ABC):
    """A loaded kernel, which takes about `nbytes` of memory.

    `spilled` are bytes of registers that its compiler keeps in memory for want of registers, as far
    as that says so.
    """

    name: str
    nbytes: int = 1 << 14
    spilled: int = 0

    @abc.abstractmethod
    def __call__(
        self, handles: tuple[Any, ...], vars: tuple[int, ...] = (), launch: Launch = ONCE
    ) -> None:
        """Puts a launch on memory and the values of variables in the device's queue."""


class Event(abc.ABC):
    """A place in a queue, which the device comes to when all that is before it is done."""

    @abc.abstractmethod
    def wait(self) -> None:
        """Returns when the device has come there."""

    @abc.abstractmethod
    def seconds_since(self, earlier: Any) -> float:
        """The time from an earlier event of the same queue to this one; waits for both."""


class Queue(abc.ABC):
    """Queue of a device's work, in order. Programs put their launches in it.

    Copies from and to the host are those of the allocator, which wait for what was put before.
    """

    @abc.abstractmethod
    def signal(self) -> Event:
        """An event behind all that was put in so far."""

    def wait(self, event: Event) -> None:
        """Delays all that is put in from now on until an event, of this queue or another.

        Here the host waits; a device that can wait by itself does better.
        """
        event.wait()

    def copy(self, target: Any, source: Any, nbytes: int) -> bool:
        """Copies between handles of devices of this kind, past the host; False if it cannot."""
        return False

    def finish(self) -> None:
        """Returns when all that was put in is done."""
        self.signal().wait()


class Call(NamedTuple):
    """One launch in a recorded graph.

    `written` has the numbers of the handles that the kernel may write to, None stands for all. What
    waits for what follows from that and from where the handles' memory lies.
    """

    program: Program
    handles: tuple[Any, ...]
    vars: tuple[int, ...] = ()
    launch: Launch = ONCE
    written: frozenset[int] | None = None


class Graph(abc.ABC):
    """Recorded launches that replay as one."""

    @abc.abstractmethod
    def set_handle(self, call: int, slot: int, handle: Any) -> None:
        """Gives a call other memory."""

    @abc.abstractmethod
    def set_var(self, call: int, slot: int, value: int) -> None:
        """Gives a call another value of its variable number `slot`."""

    @abc.abstractmethod
    def set_launch(self, call: int, launch: Launch) -> None:
        """Gives a call other sizes."""

    @abc.abstractmethod
    def run(self) -> None:
        """Runs all calls as if one after the other."""

    def check(self, calls: Sequence[Call]) -> None:
        """Shows that calls which may run side by side do not conflict on this memory.

        `calls` are those that the graph was made of, with the memory that they have now.

        Raises: InternalError otherwise.
        """
        return

    def entry(self) -> Callable[[], object]:
        """Returns the function that does what `run` does and costs least to call."""
        return self.run


class Backend(abc.ABC):
    """Interface of one device."""

    name: str
    allocator: Allocator
    queue: Queue
    # Whether `compile` may run in several threads at once, and gains by it.
    compiles_beside = False
    # Whether another process can load a binary, so that the disk cache keeps compiled kernels.
    keeps_binaries = False
    # Whether other processes may try schedules of a kernel here, each for itself.
    tries_schedules = False
    if not TYPE_CHECKING:
        __getattr__ = find_attribute

    def __init__(self, name: str, allocator: Allocator, queue: Queue) -> None:
        self.name = name
        self.allocator = allocator
        self.queue = queue

    @property
    @abc.abstractmethod
    def target(self) -> Target:
        """Target of the device under the present settings."""

    @property
    def tested_as(self) -> str:
        """The line by which a self-test of the device is kept: what its outcome depends on."""
        return self.target.key

    @property
    def compile_threads(self) -> int:
        """In how many threads `compile` may run at once and gain by it."""
        return self.target.threads if self.compiles_beside else 1

    @abc.abstractmethod
    def compile(self, source: str) -> bytes:
        """Source text in the target's language as a binary. Raises: CompileError."""

    def prepare(self) -> None:
        """Makes ready what launches need beside their kernels, while those compile."""
        return

    @abc.abstractmethod
    def load(self, name: str, binary: bytes) -> Program:
        """The function `name` of a compiled binary, ready to launch."""

    def load_all(self, binaries: Sequence[tuple[Sequence[str], bytes]]) -> list[Program]:
        """These functions of several binaries; a device may be quicker with all of them."""
        return [self.load(name, binary) for names, binary in binaries for name in names]

    def make_graph(self, calls: Sequence[Call]) -> Graph | None:
        """The launches as one replayable object, or None where the device has no such thing."""
        return None

    def disassemble(self, source: str) -> str:
        """Disassembles the source, for DEBUG=7."""
        return f"({self.name} has no disassembly)"

    def synchronize(self) -> None:
        """Waits until everything launched is done."""
        self.queue.finish()
