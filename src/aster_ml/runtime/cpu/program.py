"""Launches CPU kernels, one by one or as recorded graphs in native code.

Receives loaded functions, addresses and variable values. A kernel is
`void NAME(void** slots, int64 lo, int64 hi)`: `slots` holds the buffers' addresses and after them
the variables, 8 bytes each; the kernel runs lo <= i < hi of its outermost range. Knows nothing of
how source becomes a function.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from aster_ml.backend import ONCE, Call, Graph, Launch, Program, ThreadParts
from aster_ml.config import SPEC
from aster_ml.errors import InternalError
from aster_ml.runtime.cpu.llvm_jit import LoadedObject
from aster_ml.runtime.cpu.native_call import serial_call
from aster_ml.runtime.cpu.pool import POOL, Words, thread_count
from aster_ml.runtime.cpu.worker import (
    ARGUMENTS,
    CLAIMS,
    COUNTS,
    FUNCTION,
    GROUP_BEGIN,
    GROUP_COUNT,
    GROUP_END,
    GROUP_PARTS,
    GROUP_WORDS,
    GROUPS,
    LINE,
    LIST_WORDS,
    PARTS,
    RECORD_WORDS,
    RECORDS,
    SIZE,
)
from aster_ml.runtime.dependencies import Access, check_groups, groups_of

if TYPE_CHECKING:
    from aster_ml.runtime.cpu.clang import LoadedLibrary

KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64)


@functools.cache
def slot_packer(count: int) -> Any:
    """Packs `count` integers into 8 bytes each."""
    return struct.Struct(f"={count}q").pack


class CpuProgram(Program):
    """A loaded kernel."""

    def __init__(self, name: str, loaded: LoadedObject | LoadedLibrary) -> None:
        self.name = name
        self.loaded = loaded
        self.nbytes = loaded.nbytes // len(loaded.addresses)
        self.address = loaded.address(name)
        self.function = KERNEL(self.address)
        self.split_graphs: dict[tuple[int, int, int], NativeGraph] = {}

    def launch(
        self, addresses: tuple[int, ...], vars: tuple[int, ...] = (), n: int = 1, parts: int = 1
    ) -> None:
        """Runs the kernel on these addresses and returns when it is done.

        `n` is the size of the outermost range; with `parts` above 1 it is split over threads.
        """
        if parts <= 1:
            # Each launch packs its own slots, so threads may launch the same kernel concurrently.
            slots = slot_packer(len(addresses) + len(vars))(*addresses, *vars)
            self.function(slots, 0, n)
            return
        with POOL.lock:
            key = (len(addresses), len(vars), parts)
            graph = self.split_graphs.get(key)
            if graph is None:
                zeros = ((0,) * len(addresses), (0,) * len(vars))
                graph = NativeGraph([(self, *zeros, n, parts)], owner=False)
                self.split_graphs[key] = graph
            for slot, address in enumerate(addresses):
                graph.set_address(0, slot, address)
            for slot, value in enumerate(vars):
                graph.set_var(0, slot, value)
            graph.set_launch(0, ThreadParts(n, parts))
            graph.run()

    def __call__(
        self, handles: tuple[Any, ...], vars: tuple[int, ...] = (), launch: Launch = ONCE
    ) -> None:
        """Launches on handles.

        Raises: InternalError for a launch that is none on threads.
        """
        n, parts = launch if isinstance(launch, ThreadParts) else thread_parts(launch)
        self.launch(tuple([handle.address for handle in handles]), vars, n, parts)


NativeCall = tuple[CpuProgram, tuple[int, ...], tuple[int, ...], int, int]


class NativeGraph(Graph):
    """Kernel calls that run in one native call.

    A call is (program, addresses, vars, n, parts). `groups` are (begin, end) of calls that may run
    concurrently (see `dependencies`), by default one call each; a group starts when the previous
    one is done. A call of one part runs on the calling thread, and a graph of such calls wakes no
    worker.
    """

    def __init__(
        self,
        calls: Sequence[NativeCall],
        groups: Sequence[tuple[int, int]] | None = None,
        owner: bool = True,
    ) -> None:
        self.count = len(calls)
        # Keeps the native code alive. A program's own graphs do not outlive it, and a reference to
        # it would be a cycle.
        self.programs = [call[0] for call in calls] if owner else []
        self.parts = max((max(1, call[4]) for call in calls), default=1)
        if groups is None:
            groups = [(index, index + 1) for index in range(len(calls))]
        divided = [max(1, call[4]) for call in calls]
        groups_at = self.groups_word = LIST_WORDS
        counts_at = groups_at + -(-GROUP_WORDS * len(groups) // LINE) * LINE
        records_at = counts_at + LINE * len(groups)
        claims_at = records_at + RECORD_WORDS * len(calls)
        slots_at = claims_at + LINE * sum(parts for parts in divided if parts > 1)
        self.words = words = Words(slots_at + sum(len(c[1]) + len(c[2]) for c in calls))
        view = words.view
        view[GROUP_COUNT] = len(groups)
        view[GROUPS] = words.at(groups_at)
        view[RECORDS] = words.at(records_at)
        view[COUNTS] = words.at(counts_at)
        for index, (begin, end) in enumerate(groups):
            group = groups_at + GROUP_WORDS * index
            view[group + GROUP_BEGIN] = begin
            view[group + GROUP_END] = end
            view[group + GROUP_PARTS] = sum(divided[begin:end])
        self.record_word = [records_at + RECORD_WORDS * index for index in range(len(calls))]
        self.slot_word: list[int] = []
        self.var_word: list[int] = []
        for index, (program, addresses, values, n, _) in enumerate(calls):
            record = self.record_word[index]
            view[record + FUNCTION] = program.address
            view[record + ARGUMENTS] = words.at(slots_at)
            view[record + SIZE] = n
            view[record + PARTS] = divided[index]
            if divided[index] > 1:
                view[record + CLAIMS] = words.at(claims_at)
                claims_at += LINE * divided[index]
            self.slot_word.append(slots_at)
            self.var_word.append(slots_at + len(addresses))
            for value in (*addresses, *values):
                view[slots_at] = value
                slots_at += 1
        self.list_address = words.address
        self.serial = serial_call(words.at(records_at), len(calls)) if self.parts == 1 else None

    def set_address(self, call: int, slot: int, address: int) -> None:
        """Changes the address of a call's argument."""
        self.words.view[self.slot_word[call] + slot] = address

    def set_handle(self, call: int, slot: int, handle: Any) -> None:
        """Changes the memory of a call's argument."""
        self.words.view[self.slot_word[call] + slot] = handle.address

    def set_var(self, call: int, slot: int, value: int) -> None:
        """Changes the value of a call's variable number `slot`."""
        self.words.view[self.var_word[call] + slot] = value

    def set_launch(self, call: int, launch: Launch) -> None:
        """Changes the size of a call's divided range; the number of parts stays."""
        self.words.view[self.record_word[call] + SIZE] = thread_parts(launch).n

    def groups(self) -> list[tuple[int, int]]:
        """Begin and end of each group, as native code reads them."""
        view = self.words.view
        at = [self.groups_word + GROUP_WORDS * index for index in range(view[GROUP_COUNT])]
        return [(view[group + GROUP_BEGIN], view[group + GROUP_END]) for group in at]

    def check(self, calls: Sequence[Call]) -> None:
        """Raises InternalError where calls of a group conflict; see `Graph.check`."""
        parts = [self.words.view[record + PARTS] for record in self.record_word]
        accesses = [access_of(c)._replace(parts=n) for c, n in zip(calls, parts, strict=True)]
        check_groups(accesses, self.groups())

    def run(self) -> None:
        """Runs all calls; returns when they are done."""
        if self.serial is not None:
            self.serial()
        else:
            POOL.run(self.list_address, min(self.parts, thread_count()))

    def entry(self) -> Callable[[], object]:
        """The native function itself for a graph that needs no workers."""
        return self.run if self.serial is None else self.serial


def thread_parts(launch: Launch) -> ThreadParts:
    """A launch as one on threads. Raises: InternalError for another."""
    if not isinstance(launch, ThreadParts):
        raise InternalError(f"a CPU has no work-groups, given {launch}")
    return launch


def access_of(call: Call) -> Access:
    """The memory that a call touches and writes."""
    spans = [(h.address, h.address + h.nbytes) for h in call.handles]
    written = spans if call.written is None else [spans[i] for i in call.written]
    return Access(tuple(spans), tuple(written), thread_parts(call.launch).parts)


def graph_of_calls(calls: Sequence[Call]) -> NativeGraph:
    """The graph of launches on this device."""
    native_calls: list[NativeCall] = []
    for call in calls:
        if not isinstance(call.program, CpuProgram):
            raise InternalError(f"{call.program!r} is no kernel of the CPU")
        addresses = tuple([handle.address for handle in call.handles])
        native_calls.append((call.program, addresses, call.vars, *thread_parts(call.launch)))
    graph = NativeGraph(native_calls, groups_of([access_of(call) for call in calls]))
    if SPEC:
        graph.check(calls)
    return graph
