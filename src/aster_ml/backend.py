"""What a device has to give: loaded kernels, launches recorded as one, a compiler, a Target.

Base classes for `runtime/`. Buffers and the registry of devices do not belong here.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from aster_ml.allocator import Allocator
from aster_ml.target import Target


class Program(abc.ABC):
    """A loaded kernel, which takes about `nbytes` of memory."""

    name: str
    nbytes: int = 1 << 14

    @abc.abstractmethod
    def __call__(
        self,
        handles: tuple[Any, ...],
        vars: tuple[int, ...] = (),
        global_size: tuple[int, ...] = (1, 1, 1),
        local_size: tuple[int, ...] | None = None,
        wait: bool = False,
    ) -> float | None:
        """Launches on memory and the values of variables; with `wait`, returns the seconds."""


class Call(NamedTuple):
    """One launch in a recorded graph.

    `n` is the size of the range that is split in `parts`; where the target has work-groups both
    are unused. `written` has the numbers of the handles that the kernel may write to, None stands
    for all. What waits for what follows from that and from where the handles' memory lies.
    """

    program: Program
    handles: tuple[Any, ...]
    vars: tuple[int, ...] = ()
    n: int = 1
    parts: int = 1
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
    def set_size(self, call: int, n: int) -> None:
        """Gives a call another size of the range that is split."""

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
        """What `run` does as the function that costs least to call."""
        return self.run


class Backend(abc.ABC):
    """What the rest of Aster needs of one device."""

    name: str
    allocator: Allocator
    # Whether `compile` may run in several threads at once, and gains by it.
    compiles_beside = False

    def __init__(self, name: str, allocator: Allocator) -> None:
        self.name = name
        self.allocator = allocator

    @property
    @abc.abstractmethod
    def target(self) -> Target:
        """What the device can do, under the settings of now."""

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
        """What the source becomes, for DEBUG=7."""
        return f"({self.name} has no disassembly)"

    def synchronize(self) -> None:
        """Waits until everything launched is done."""
        return
