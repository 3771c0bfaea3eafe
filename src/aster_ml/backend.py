"""Declares what a device provides: loaded kernels, a queue, recorded graphs, a compiler, a Target.

Base classes for `runtime/`. Buffers and the registry of devices do not belong here.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from aster_ml.allocator import Allocator
from aster_ml.errors import DeviceError
from aster_ml.plugins import find_attribute
from aster_ml.target import IDLE, Target


class ThreadParts(NamedTuple):
    """A launch on host threads, which divide the outermost range, of size `n`, into `parts`.

    A single part runs on the calling thread.
    """

    n: Any = 1
    parts: int = 1


class Grid(NamedTuple):
    """A launch on work-groups: `blocks` and work-items per block, in each dimension."""

    blocks: tuple[Any, ...]
    items: tuple[int, ...]


# How a kernel runs in parallel; its Target decides between the two. Sizes may be expressions of
# variables until a launch, which has their values.
Launch = ThreadParts | Grid
ONCE = ThreadParts()


class Program(abc.ABC):
    """A loaded kernel, which takes about `nbytes` of memory.

    `spilled` counts the bytes of registers that the compiler spills to memory, if the compiler
    reports it.
    """

    name: str
    nbytes: int = 1 << 14
    spilled: int = 0

    @abc.abstractmethod
    def __call__(
        self, handles: tuple[Any, ...], vars: tuple[int, ...] = (), launch: Launch = ONCE
    ) -> None:
        """Enqueues a launch on these buffers with these values of variables."""


class Event(abc.ABC):
    """A point in a queue, reached once all work before it is done."""

    @abc.abstractmethod
    def wait(self) -> None:
        """Returns once the device has reached the event."""

    @abc.abstractmethod
    def seconds_since(self, earlier: Any) -> float:
        """The time from an earlier event of the same queue to this one; waits for both."""


class Queue(abc.ABC):
    """An in-order queue of a device's work, to which programs add launches.

    The allocator copies from and to the host, and waits for earlier work.
    """

    @abc.abstractmethod
    def signal(self) -> Event:
        """An event after all work enqueued so far."""

    def wait(self, event: Event) -> None:
        """Delays later work until an event of this queue or another.

        The host waits here; a device overrides this if its queue can wait.
        """
        event.wait()

    def copy(self, target: Any, source: Any, nbytes: int) -> bool:
        """Copies between handles of devices of this kind, past the host; False if it cannot."""
        return False

    def finish(self) -> None:
        """Returns once all enqueued work is done."""
        self.signal().wait()


class Call(NamedTuple):
    """One launch in a recorded graph.

    `written` has the numbers of the handles that the kernel may write to; None means all. With the
    addresses of the handles it decides the dependencies between calls.
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
        """Changes the memory of a call's argument number `slot`."""

    @abc.abstractmethod
    def set_var(self, call: int, slot: int, value: int) -> None:
        """Changes the value of a call's variable number `slot`."""

    @abc.abstractmethod
    def set_launch(self, call: int, launch: Launch) -> None:
        """Changes the launch sizes of a call."""

    @abc.abstractmethod
    def run(self) -> None:
        """Runs all calls as if one after the other."""

    def check(self, calls: Sequence[Call]) -> None:
        """Checks that calls which may run concurrently have no conflicting accesses.

        `calls` are the recorded calls, with their present memory.

        Raises: InternalError for a conflict.
        """
        return

    def entry(self) -> Callable[[], object]:
        """The cheapest function to call that does the same as `run`."""
        return self.run


class Backend(abc.ABC):
    """Interface of one device."""

    name: str
    allocator: Allocator
    queue: Queue
    # Whether `compile` is faster in several threads.
    compiles_beside = False
    # Whether another process can load a binary, so that the disk cache keeps compiled kernels.
    keeps_binaries = False
    # Whether a search may time schedules in several processes.
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
        """The key of a self-test's result: all that the result depends on, as one line."""
        return self.target.key

    @property
    def compile_threads(self) -> int:
        """The number of threads that make `compile` faster."""
        return self.target.threads if self.compiles_beside else 1

    @abc.abstractmethod
    def compile(self, source: str) -> bytes:
        """Source text in the target's language as a binary. Raises: CompileError."""

    def prepare(self) -> None:
        """Prepares what launches need beside kernels, while kernels compile."""
        return

    @abc.abstractmethod
    def load(self, name: str, binary: bytes) -> Program:
        """The function `name` of a compiled binary, ready to launch."""

    def load_all(self, binaries: Sequence[tuple[Sequence[str], bytes]]) -> list[Program]:
        """Loads functions of several binaries, which may be faster than one after the other."""
        return [self.load(name, binary) for names, binary in binaries for name in names]

    def make_graph(self, calls: Sequence[Call]) -> Graph | None:
        """The launches as one replayable graph; None where the device has none."""
        return None

    def disassemble(self, source: str) -> str:
        """Disassembles the source, for DEBUG=7."""
        return f"({self.name} has no disassembly)"

    def synchronize(self) -> None:
        """Waits until everything launched is done."""
        self.queue.finish()


RUNS_NOTHING = "holds data and runs nothing; copy to a device that computes: CPU"


class StorageBackend(Backend):
    """A device that holds data and runs no kernels."""

    @property
    def target(self) -> Target:
        """A Target without ops and dtypes."""
        kind = self.name.partition(":")[0]
        return Target(kind, "null", kind=IDLE, native_dtypes=frozenset(), native_ops=frozenset())

    def compile(self, source: str) -> bytes:
        """Refuses. Raises: DeviceError."""
        raise DeviceError(f"{self.name} {RUNS_NOTHING}")

    def load(self, name: str, binary: bytes) -> Program:
        """Refuses. Raises: DeviceError."""
        raise DeviceError(f"{self.name} {RUNS_NOTHING}")
